//! `hushflow tail --follow` on a terminal: a table of the newest epoch, redrawn in place.

use std::io::{self, IsTerminal, stdout};

use console::Term;

/// A table at the bottom of the terminal with one line for each key.
pub(super) struct Live {
    terminal: Term,
    head: Vec<String>,
    rows: Vec<String>,
    /// Lines on the screen.
    drawn: usize,
    changed: bool,
}

impl Live {
    /// Returns `None` where standard output is not a terminal.
    pub(super) fn new() -> Option<Self> {
        let terminal = stdout().is_terminal().then(Term::buffered_stdout)?;
        Some(Self { terminal, head: Vec::new(), rows: Vec::new(), drawn: 0, changed: false })
    }

    /// Begins the next epoch.
    pub(super) fn begin_epoch(&mut self) {
        self.rows.clear();
        self.changed = true;
    }

    /// Adds a line; the first one is preceded by the header.
    pub(super) fn push(&mut self, text: &str) {
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        self.rows.extend(lines.pop());
        self.head.append(&mut lines);
    }

    /// Replaces the table by that of the newest epoch.
    ///
    /// # Errors
    /// Returns errors of the terminal.
    pub(super) fn draw(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let (height, width) = self.terminal.size();
        let lines = fitting(&self.head, &self.rows, height.into(), width.into());
        self.terminal.clear_last_lines(self.drawn)?;
        lines.iter().try_for_each(|line| self.terminal.write_line(line))?;
        self.drawn = lines.len();
        self.terminal.flush()
    }
}

/// Returns the lines that fit a screen, cut to its width; one line is left for the cursor.
fn fitting(head: &[String], rows: &[String], height: usize, width: usize) -> Vec<String> {
    let room = height.saturating_sub(1 + head.len()).max(2);
    let shown = if rows.len() > room { room - 1 } else { rows.len() };
    let hidden = rows.len() - shown;
    let more = (hidden > 0).then(|| format!("… and {hidden} more keys: --key chooses"));
    let lines = head.iter().chain(&rows[..shown]).cloned().chain(more);
    lines.map(|line| line.chars().take(width.saturating_sub(1)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_holds_what_fits_it() {
        let lines = |texts: &[&str]| texts.iter().map(|text| String::from(*text)).collect::<Vec<_>>();
        let (head, rows) = (lines(&["key mean"]), lines(&["a 1", "b 2", "c 3"]));
        assert_eq!(fitting(&head, &rows, 24, 80), lines(&["key mean", "a 1", "b 2", "c 3"]));
        assert_eq!(fitting(&head, &rows, 5, 6), lines(&["key m", "a 1", "b 2", "c 3"]));
        assert_eq!(
            fitting(&head, &rows, 4, 80),
            lines(&["key mean", "a 1", "… and 2 more keys: --key chooses"])
        );
        assert_eq!(fitting(&head, &rows, 0, 0), lines(&["", "", ""]));
    }
}
