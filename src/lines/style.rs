//! The style of tables: the width of the terminal, colours, and which cells were chosen.

/// Layout of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableStyle {
    /// Width of the terminal; `None` in a pipe, where every line has all cells.
    pub width: Option<usize>,
    /// Whether colours are used.
    pub colours: bool,
    /// Cells to show: titles, or words of them such as a column's name or a pair `a~b`, or several
    /// of these separated by commas; empty for those that fit.
    pub columns: Vec<String>,
}

impl TableStyle {
    /// Whether a cell was chosen.
    pub(super) fn chooses(&self, title: &str) -> bool {
        // A name may itself hold commas.
        let lists = |names: &String| {
            is_name(names, title) || names.split(',').any(|name| is_name(name.trim(), title))
        };
        self.columns.is_empty() || self.columns.iter().any(lists)
    }

    /// Returns the first chosen name that no title has.
    pub(super) fn unknown(&self, titles: &[String]) -> Option<&str> {
        let is_known = |name: &str| titles.iter().any(|title| is_name(name, title));
        let lists = self.columns.iter().filter(|names| !is_known(names));
        lists.flat_map(|names| names.split(',')).map(str::trim).find(|name| !is_known(name))
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }

    /// Makes less important text faint.
    pub fn faint(&self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Returns a faint note above the titles, in lines that fit the terminal.
    pub(super) fn note(&self, text: &str) -> String {
        let width = self.width.map_or(usize::MAX, |width| width.saturating_sub(1).max(20));
        wrap_words(text, width).iter().map(|line| self.faint(line) + "\n").collect()
    }

    /// Makes a title bold.
    pub fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Colours a word of quality: good is green, anything else a warning.
    pub(super) fn quality(&self, word: &str) -> String {
        if word == "good" { self.good(word) } else { self.warning(word) }
    }

    /// Makes text green.
    pub fn good(&self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Makes text yellow.
    pub fn warning(&self, text: &str) -> String {
        self.paint("33", text)
    }
}

/// Whether a name is that of a cell: its title, the first word or the rest of it. The columns of a
/// pair may have either order.
fn is_name(name: &str, title: &str) -> bool {
    let (word, rest) = title.split_once(' ').unwrap_or((title, ""));
    let pair = name.strip_prefix(word).map_or(name, str::trim_start).split_once('~');
    let is_swapped = pair.is_some_and(|(first, second)| rest.split_once('~') == Some((second, first)));
    [title, word, rest].contains(&name) || is_swapped
}

/// Breaks a text between words into lines of at most `width` characters.
pub(super) fn wrap_words(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let has_room =
            |line: &&mut String| line.is_empty() || line.chars().count() + word.chars().count() < width;
        match lines.last_mut().filter(has_room) {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => line.extend([" ", word]),
            None => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_chosen_in_either_order() {
        let titles = ["sd a", "corr a~b", "corr a~c", "corr b~c"];
        let check = |name: &str, expected: &[&str]| {
            let style = TableStyle { columns: vec![name.into()], ..TableStyle::default() };
            let chosen = titles.into_iter().filter(|title| style.chooses(title));
            assert_eq!(chosen.collect::<Vec<_>>(), expected);
        };
        check("b~a", &["corr a~b"]);
        check("corr c~b", &["corr b~c"]);
        check("corr", &["corr a~b", "corr a~c", "corr b~c"]);
        check("a", &["sd a"]);
    }
}
