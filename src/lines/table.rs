//! The layout of tables: fixed widths for pipes; on a terminal the columns that fit its width.

/// Most columns of each number in a pipe.
const TABLE_COLUMNS: usize = 4;

/// Width of a cell in a pipe and on a terminal, without the space before it.
const CELL: usize = 18;
const NARROW_CELL: usize = 16;

/// Width of the name of a view.
const VIEW: usize = 12;

/// Width of the word at the end of a line on a terminal.
const QUALITY: usize = 9;

/// How a table is laid out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableStyle {
    /// Width of the terminal; `None` in a pipe, where every line has all cells.
    pub width: Option<usize>,
    /// Whether colours are used.
    pub colours: bool,
    /// Cells to show: titles, or words of them such as a column's name; empty for all.
    pub columns: Vec<String>,
}

impl TableStyle {
    /// Whether a cell was chosen by its title, its first word or the rest of it.
    fn chooses(&self, title: &str) -> bool {
        let (word, rest) = title.split_once(' ').unwrap_or((title, ""));
        self.columns.is_empty()
            || self.columns.iter().any(|name| [title, word, rest].contains(&name.as_str()))
    }

    /// Returns the first chosen name that no title has.
    pub(super) fn unknown(&self, titles: &[String]) -> Option<&str> {
        let alone = |name: &str| {
            let style = TableStyle { columns: vec![name.into()], ..TableStyle::default() };
            titles.iter().any(|title| style.chooses(title))
        };
        self.columns.iter().map(String::as_str).find(|name| !alone(name))
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }

    /// Makes less important text faint.
    fn faint(&self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Returns a faint note above the titles, in lines that fit the terminal.
    pub(super) fn note(&self, text: &str) -> String {
        let width = self.width.map_or(usize::MAX, |width| width.saturating_sub(1).max(20));
        let mut lines = vec![String::new()];
        for word in text.split(' ') {
            let line = lines.last_mut().filter(|line| line.chars().count() + word.chars().count() < width);
            match line {
                Some(line) if line.is_empty() => line.push_str(word),
                Some(line) => line.extend([" ", word]),
                None => lines.push(word.into()),
            }
        }
        lines.iter().map(|line| self.faint(line) + "\n").collect()
    }

    fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Colours a word of quality: good is green, anything else a warning.
    fn quality(&self, word: &str) -> String {
        self.paint(if word == "good" { "32" } else { "33" }, word)
    }
}

/// The fields of a line before its layout.
pub(super) struct TableRow<'a> {
    pub(super) epoch: &'a str,
    /// Start of the epoch; empty if epochs are counted.
    pub(super) start: &'a str,
    /// Name of the view, if there are several.
    pub(super) view: Option<&'a str>,
    pub(super) key: &'a str,
    /// The count, if there is one.
    pub(super) count: Option<String>,
    pub(super) cells: Vec<String>,
    /// Quality of the estimate.
    pub(super) quality: Option<&'a str>,
}

/// Numbers of a log that determine the widths of its tables.
#[derive(Clone, Copy)]
pub(super) struct TableSizes {
    /// The last epoch.
    pub(super) horizon: u64,
    /// Characters of the longest key.
    pub(super) longest_key: usize,
    /// Characters of the start of an epoch.
    pub(super) start: usize,
}

/// Widths of a table, and the cells that it shows.
pub(super) struct TableLayout<'a> {
    style: &'a TableStyle,
    epoch: usize,
    /// Width of the start of an epoch; `None` if lines leave it out.
    start: Option<usize>,
    key: usize,
    cell: usize,
    shown: Vec<usize>,
    /// Number of chosen cells that don't fit.
    pub(super) hidden: usize,
}

impl<'a> TableLayout<'a> {
    /// Lays out cells with these titles after `header`, the titles of the other fields. `sizes`
    /// determine the widths of the first fields.
    pub(super) fn new(
        style: &'a TableStyle,
        titles: &[String],
        header: &TableRow<'_>,
        sizes: TableSizes,
    ) -> Self {
        let chosen = (0..titles.len()).filter(|&index| style.chooses(&titles[index]));
        let word = |index: usize| titles[index].split(' ').next();
        let start = Some(sizes.start).filter(|_| !header.start.is_empty());
        let Some(width) = style.width else {
            // A pipe has the first columns of each number.
            let is_among_first = |&index: &usize| {
                let before = (0..index).filter(|&other| word(other) == word(index)).count();
                !style.columns.is_empty() || before < TABLE_COLUMNS
            };
            let shown = chosen.filter(is_among_first).collect();
            return TableLayout { style, epoch: 7, start, key: 8, cell: CELL, shown, hidden: 0 };
        };
        let epoch = sizes.horizon.to_string().len().max(5);
        let view = if header.view.is_some() { VIEW + 2 } else { 0 };
        let quality = if header.quality.is_some() { QUALITY } else { 0 };
        let count = if header.count.is_some() { NARROW_CELL + 1 } else { 0 };
        let room = width.saturating_sub(1 + epoch + 2 + view + count + quality);
        // A terminal that is too narrow for the start of epochs has their numbers alone.
        let start = start.filter(|start| room >= start + 2 + NARROW_CELL + 1 + 3);
        let room = start.map_or(room, |start| room - start - 2);
        // A quarter of the terminal, less if no cell would fit.
        let key = sizes.longest_key.min((width / 4).max(8)).min(room.saturating_sub(NARROW_CELL + 1)).max(3);
        let room = room.saturating_sub(key);
        let mut shown: Vec<usize> = chosen.collect();
        let hidden = shown.len().saturating_sub((room / (NARROW_CELL + 1)).max(1));
        shown.truncate(shown.len() - hidden);
        TableLayout { style, epoch, start, key, cell: NARROW_CELL, shown, hidden }
    }

    /// Formats the titles.
    pub(super) fn titles(&self, header: &TableRow<'_>) -> String {
        let count = header.count.iter().map(|count| cut(count, self.cell));
        let cells = self.shown.iter().map(|&index| cut(&header.cells[index], self.cell));
        let lead = self.lead(header, header.key);
        let text = count.chain(cells).fold(lead, |text, cell| text + &self.padded(&cell));
        self.style.bold(&match header.quality {
            Some(quality) => format!("{text}  {quality}"),
            None => text,
        })
    }

    /// Formats a line. Without an estimate, `reason` stands in place of the cells.
    pub(super) fn line(&self, row: &TableRow<'_>, reason: Option<&str>) -> String {
        let parts =
            if self.style.width.is_some() { wrapped(row.key, self.key) } else { vec![row.key.into()] };
        let mut text = self.lead(row, &parts[0]);
        row.count.iter().for_each(|count| text += &self.padded(count));
        match reason {
            Some(reason) if self.style.width.is_none() => text += &format!("  no estimate: {reason}"),
            Some(reason) => {
                let why = row.quality.map_or_else(|| reason.to_owned(), |word| word.replace('-', " "));
                text +=
                    &format!("  {}", self.style.faint(&self.fitted(&text, &format!("no estimate: {why}"))));
            }
            None => {
                self.shown.iter().for_each(|&index| text += &self.padded(&row.cells[index]));
                if let Some(quality) = row.quality {
                    text += &format!("  {}", self.style.quality(&self.fitted(&text, quality)));
                }
            }
        }
        let indent = " ".repeat(self.before_key(row).chars().count());
        parts[1..].iter().fold(text, |text, part| format!("{text}\n{indent}{part}"))
    }

    /// Formats the fields that identify a line.
    fn lead(&self, row: &TableRow<'_>, key: &str) -> String {
        format!("{}{key:<width$}", self.before_key(row), width = self.key)
    }

    fn before_key(&self, row: &TableRow<'_>) -> String {
        let mut text = format!("{:>width$}  ", row.epoch, width = self.epoch);
        if let Some(width) = self.start {
            text += &format!("{:<width$}  ", row.start);
        }
        if let Some(view) = row.view {
            text += &format!("{view:<VIEW$}  ");
        }
        text
    }

    fn padded(&self, cell: &str) -> String {
        format!(" {cell:>width$}", width = self.cell)
    }

    /// Cuts the end of a line to the width of the terminal.
    fn fitted(&self, before: &str, end: &str) -> String {
        match self.style.width {
            Some(width) => cut(end, width.saturating_sub(before.chars().count() + 3).max(6)),
            None => end.into(),
        }
    }
}

/// Cuts a text to a width, with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

/// Cuts a text into parts of at most `width` characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let parts: Vec<String> = characters.chunks(width).map(|part| part.iter().collect()).collect();
    if parts.is_empty() { vec![String::new()] } else { parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: [&str; 6] = ["mean a", "mean b", "mean c", "sd a", "sd b", "sd c"];

    fn row<'a>(key: &'a str, cells: &[&str]) -> TableRow<'a> {
        let cells = cells.iter().map(ToString::to_string).collect();
        let (epoch, start, count) = ("7", "2013-01-07T05:00", Some("810 ± 29".into()));
        TableRow { epoch, start, view: None, key, count, cells, quality: Some("good") }
    }

    fn lines(style: &TableStyle, key: &str, longest: usize) -> Vec<String> {
        let header = TableRow { start: "from", ..row("key", &TITLES) };
        let titles = TITLES.map(String::from);
        let layout = TableLayout::new(
            style,
            &titles,
            &header,
            TableSizes { horizon: 365, longest_key: longest, start: 16 },
        );
        let line = layout.line(&row(key, &["1.5 ± 0.1"; 6]), None);
        let without = layout.line(&row(key, &[]), Some("the count is 3 with noise of deviation 29"));
        let text = [layout.titles(&header), line, without].join("\n");
        text.lines().map(String::from).collect()
    }

    #[test]
    fn every_line_fits_the_terminal() {
        for width in 40..200 {
            let style = TableStyle { width: Some(width), ..TableStyle::default() };
            for line in lines(&style, "La Guardia Airport, New York", 28) {
                // The lead, the count and one cell are always there.
                assert!(line.chars().count() < width.max(62), "{width}: {line}");
            }
        }
    }

    #[test]
    fn cells_are_chosen_by_title_word_or_column() {
        let check = |columns: &[&str], expected: &[usize]| {
            let columns = columns.iter().map(ToString::to_string).collect();
            let style = TableStyle { columns, ..TableStyle::default() };
            let header = row("key", &TITLES);
            let titles = TITLES.map(String::from);
            assert_eq!(
                TableLayout::new(
                    &style,
                    &titles,
                    &header,
                    TableSizes { horizon: 9, longest_key: 3, start: 16 }
                )
                .shown,
                expected
            );
        };
        check(&["b"], &[1, 4]);
        check(&["sd"], &[3, 4, 5]);
        check(&["mean c", "a"], &[0, 2, 3]);
        let style = TableStyle { columns: vec!["a".into(), "d".into()], ..TableStyle::default() };
        assert_eq!(style.unknown(&TITLES.map(String::from)), Some("d"));
    }

    #[test]
    fn long_keys_are_wrapped_below_their_column() {
        let style = TableStyle { width: Some(100), ..TableStyle::default() };
        let lines = lines(&style, &"k".repeat(30), 30);
        let column = lines[0].find("key").unwrap();
        assert_eq!(lines[2], format!("{}kkkkk", " ".repeat(column)));
        assert!(lines[1].ends_with("good") && lines[3].ends_with("no estimate: good"), "{lines:?}");
    }

    #[test]
    fn a_pipe_has_all_cells_and_no_colours() {
        let lines = lines(&TableStyle::default(), "JFK", 3);
        assert_eq!(lines[1].matches("1.5 ± 0.1").count(), 6);
        assert!(lines[2].ends_with("no estimate: the count is 3 with noise of deviation 29"));
        assert!(!lines.concat().contains('\x1b'));
    }

    #[test]
    fn colours_do_not_move_columns() {
        let style = TableStyle { width: Some(100), colours: true, ..TableStyle::default() };
        let line = &lines(&style, "JFK", 3)[1];
        assert!(line.ends_with("  \x1b[32mgood\x1b[0m"), "{line}");
    }
}
