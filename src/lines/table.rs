//! The layout of tables: fixed widths for pipes; on a terminal the columns that fit its width.

use std::collections::HashMap;

use super::style::{TableStyle, wrap_words};

/// Maximum number of columns of each statistic in a pipe.
const TABLE_COLUMNS: usize = 4;

/// Minimum width of a cell in a pipe and on a terminal, without the space before it, and the width
/// that it has on a terminal with room for it, which fits nearly all numbers.
const CELL: usize = 18;
const NARROW_CELL: usize = 16;
const WIDE_CELL: usize = 20;

/// Minimum width of a terminal whose cells are wide.
const WIDE: usize = 80;

/// Width of a count on a terminal, without the space before it.
const COUNT: usize = 14;

/// Width of the name of a view, and on a narrow terminal.
const VIEW: usize = 12;
const NARROW_VIEW: usize = 6;

/// Widths of the longest word at the end of a line on a terminal and of its title, with the spaces
/// before them.
const QUALITY: usize = 17;
const QUALITY_TITLE: usize = 9;

/// Characters of a key that must fit before the quality does. Without space for both, a long
/// quality follows on a separate line.
const KEY: usize = 12;

/// Numbers that a line of a terminal shows, if it has space for them beside the key.
const WANTED: usize = 2;

/// The fields of a line before its layout.
pub(super) struct TableRow<'a> {
    pub(super) epoch: &'a str,
    /// Start of the epoch; empty if epochs are counted.
    pub(super) start: &'a str,
    /// The part of it that distinguishes epochs.
    pub(super) brief_start: &'a str,
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
    /// Characters of the start of an epoch, and of the part that distinguishes epochs.
    pub(super) start: usize,
    pub(super) brief_start: usize,
}

/// The parts of a terminal line before and after its cells, and the minimum width of the cells.
#[derive(Clone, Copy)]
struct LeadingColumns {
    quality: usize,
    start: Option<usize>,
    has_epoch: bool,
    least: usize,
}

/// Widths of a table, and the cells that it shows.
pub(super) struct TableLayout<'a> {
    style: &'a TableStyle,
    /// Width of the number of an epoch; `None` if lines leave it out.
    epoch: Option<usize>,
    /// Width of the start of an epoch; `None` if lines leave it out.
    start: Option<usize>,
    is_brief: bool,
    view: usize,
    key: usize,
    count: usize,
    /// Whether the count is on a line of its own, above the cells: the terminal is narrow.
    is_stacked: bool,
    /// Indices and widths of the cells shown.
    cells: Vec<(usize, usize)>,
    /// Cells on a line of the terminal. Chosen cells that don't fit follow on further lines.
    per_line: usize,
    /// Number of cells that aren't shown.
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
        let least = match style.width {
            None => CELL,
            Some(width) if width < WIDE => NARROW_CELL,
            Some(_) => WIDE_CELL,
        };
        let chosen = (0..titles.len()).filter(|&index| style.chooses(&titles[index]));
        let mut cells: Vec<_> =
            chosen.map(|index| (index, titles[index].chars().count().max(least))).collect();
        let chosen = cells.len();
        let start = Some(sizes.start).filter(|_| !header.start.is_empty());
        let Some(width) = style.width else {
            // A pipe shows the first columns of each statistic.
            let mut counts = HashMap::new();
            cells.retain(|&(index, _)| {
                let count = counts.entry(titles[index].split(' ').next()).or_insert(0);
                *count += 1;
                !style.columns.is_empty() || *count <= TABLE_COLUMNS
            });
            let (per_line, hidden) = (cells.len().max(1), chosen - cells.len());
            let lead = TableLayout {
                epoch: Some(7),
                start,
                view: VIEW,
                key: 8,
                count: CELL,
                ..TableLayout::bare(style)
            };
            return TableLayout { cells, per_line, hidden, ..lead };
        };
        let epoch = sizes.horizon.to_string().len().max(5);
        let room_for_cells = |view: usize, count: usize| {
            let view = if header.view.is_some() { view + 2 } else { 0 };
            let count = if header.count.is_some() { count } else { 0 };
            width.saturating_sub(1 + epoch + 2 + view + count)
        };
        let least_room = 3 + NARROW_CELL + 1 + header.quality.map_or(0, |_| QUALITY_TITLE);
        let is_narrow = room_for_cells(VIEW, COUNT + 1) < least_room;
        let is_stacked = is_narrow && header.count.is_some();
        let view = if is_narrow { NARROW_VIEW } else { VIEW };
        let room = room_for_cells(view, if is_stacked { 0 } else { COUNT + 1 });
        let short = header.quality.map_or(0, |_| QUALITY_TITLE);
        let is_wide = room >= QUALITY + NARROW_CELL + 1 + sizes.longest_key.min(KEY);
        let quality = if is_wide { header.quality.map_or(0, |_| QUALITY) } else { short };
        let of_width = |least: usize| -> Vec<(usize, usize)> {
            cells.iter().map(|&(index, _)| (index, titles[index].chars().count().max(least))).collect()
        };
        // The width of the key is a quarter of the terminal, less if no cell would fit.
        let room_by_key = |lead: &LeadingColumns| {
            let room = room.saturating_sub(lead.quality) + if lead.has_epoch { 0 } else { epoch + 2 };
            let room = lead.start.map_or(room, |start| room.saturating_sub(start + 2));
            let longest = sizes.longest_key.min((width / 4).max(8));
            let key = longest.min(room.saturating_sub(NARROW_CELL + 1)).max(3);
            (key, room.saturating_sub(key))
        };
        // On a terminal too narrow for the start of epochs, or for the keys beside it, lines show
        // only the numbers of epochs. So they do if chosen cells would need further lines.
        let total: usize = cells.iter().map(|(_, width)| width + 1).sum();
        let fits = |lead: &&LeadingColumns| {
            let Some(start) = lead.start else { return true };
            let without = LeadingColumns { start: None, ..**lead };
            let is_enough = room.saturating_sub(lead.quality) >= start + 2 + NARROW_CELL + 1 + 3;
            let [with_start, without] = [*lead, &without].map(room_by_key);
            let helps = !style.columns.is_empty() && total > with_start.1;
            is_enough && with_start.0 == without.0 && !(helps && total <= without.1)
        };
        let fitting = |lead: &LeadingColumns| {
            let room = room_by_key(lead).1;
            let ends = of_width(lead.least).into_iter().scan(0, |end, (_, width)| {
                *end += width + 1;
                Some(*end)
            });
            ends.take_while(|&end| end <= room).count()
        };
        // If a second number would not fit, a long quality moves to a separate line. Then the least
        // informative fields are left out: the time of day at which every epoch starts, or its
        // year, the number of the epoch beside its start, spaces, and last the start.
        let all = LeadingColumns { quality, start, has_epoch: true, least };
        let short = LeadingColumns { quality: short, ..all };
        let brief = start.map(|start| start.min(sizes.brief_start));
        let bare = LeadingColumns { start: brief, has_epoch: brief.is_none(), ..short };
        let last = LeadingColumns { start: None, ..short };
        let options = match style.columns.is_empty() {
            true => vec![
                all,
                short,
                LeadingColumns { start: brief, ..short },
                bare,
                LeadingColumns { least: NARROW_CELL, ..bare },
                last,
                LeadingColumns { least: NARROW_CELL, ..last },
            ],
            false => vec![all, LeadingColumns { start: brief, ..all }, LeadingColumns { start: None, ..all }],
        };
        let wanted = if style.columns.is_empty() { cells.len().min(WANTED) } else { 0 };
        let viable = || options.iter().filter(&fits);
        let enough = viable().find(|lead| fitting(lead) >= wanted);
        let most = || viable().rev().max_by_key(|lead| fitting(lead));
        let lead = *enough.or_else(most).unwrap_or(&last);
        let per_line_by_default = fitting(&lead).max(1);
        let mut cells = of_width(lead.least);
        let total: usize = cells.iter().map(|(_, width)| width + 1).sum();
        let (key, room) = room_by_key(&lead);
        let widest = room.saturating_sub(1).max(NARROW_CELL);
        let mut per_line = chosen.max(1);
        if total > room && style.columns.is_empty() {
            per_line = per_line_by_default;
            cells.truncate(per_line);
            cells.iter_mut().for_each(|(_, width)| *width = widest.min(*width));
        } else if total > room {
            // A title at the start of a further line may begin below the key.
            let width_of = |per_line: usize| {
                let bound = |index: usize| index < per_line || !index.is_multiple_of(per_line);
                let bound = cells.iter().enumerate().filter(|&(index, _)| bound(index));
                bound.map(|(_, &(_, width))| width).max().unwrap_or(NARROW_CELL).min(widest)
            };
            let most = (1..=chosen).rev().find(|&count| count * (width_of(count) + 1) <= room);
            per_line = most.unwrap_or(1);
            let width = width_of(per_line);
            cells.iter_mut().for_each(|cell| cell.1 = width);
        }
        let hidden = chosen - cells.len();
        let used: usize = cells.iter().take(per_line).map(|(_, width)| width + 1).sum();
        let more = room.saturating_sub(used) / per_line;
        for (_, width) in &mut cells {
            *width = (*width).max(WIDE_CELL.min(*width + more));
        }
        let epoch = Some(epoch).filter(|_| lead.has_epoch);
        let is_brief = lead.start.is_some_and(|start| start < sizes.start);
        let bare = TableLayout { is_brief, is_stacked, ..TableLayout::bare(style) };
        let lead = TableLayout { epoch, start: lead.start, view, key, count: COUNT, ..bare };
        TableLayout { cells, per_line, hidden, ..lead }
    }

    fn bare(style: &'a TableStyle) -> Self {
        let cells = Vec::new();
        TableLayout {
            style,
            epoch: None,
            start: None,
            is_brief: false,
            view: 0,
            key: 0,
            count: 0,
            is_stacked: false,
            cells,
            per_line: 1,
            hidden: 0,
        }
    }

    /// Returns the width of the count before the cells, with the space before it.
    fn count_width(&self, row: &TableRow<'_>) -> usize {
        if row.count.is_some() && !self.is_stacked { self.count + 1 } else { 0 }
    }

    fn first_width(&self) -> usize {
        self.cells.first().map_or(NARROW_CELL, |&(_, width)| width)
    }

    /// Formats the titles. Long ones take several lines.
    pub(super) fn titles(&self, header: &TableRow<'_>) -> String {
        let count = header.count.as_deref();
        let mut lead = self.lead(header, header.key);
        if let Some(count) = count {
            lead += &pad(count, if self.is_stacked { self.first_width() } else { self.count });
        }
        let begin = self.lead_width(header) + self.count_width(header);
        let is_stacked = self.is_stacked && count.is_some();
        let mut lines = if is_stacked || self.cells.is_empty() { vec![lead.clone()] } else { Vec::new() };
        for (block, cells) in self.cells.chunks(self.per_line).enumerate() {
            // The first title of a further line may begin below the key.
            let is_first = block == 0 && !is_stacked;
            let reach = if is_first { 0 } else { begin };
            let wrap = |(position, &(index, width)): (usize, &(usize, usize))| {
                let width = if position == 0 { reach + width } else { width };
                (wrap_title(&header.cells[index], width), width)
            };
            let titles: Vec<(Vec<String>, usize)> = cells.iter().enumerate().map(wrap).collect();
            let height = titles.iter().map(|(parts, _)| parts.len()).max().unwrap_or(0);
            lines.extend((0..height).map(|line| {
                let before = match (is_first, line) {
                    (true, 0) => lead.clone(),
                    (true, _) => " ".repeat(begin),
                    (false, _) => String::new(),
                };
                let part = |(parts, width): &(Vec<String>, usize)| {
                    pad(parts.get(line).map_or("", String::as_str), *width)
                };
                before + &titles.iter().map(part).collect::<String>()
            }));
        }
        if let (Some(first), Some(quality)) = (lines.first_mut(), header.quality) {
            *first += &format!("  {quality}");
        }
        lines.iter().map(|line| self.style.bold(line.trim_end())).collect::<Vec<_>>().join("\n")
    }

    /// Formats a line. Without an estimate, `reason` replaces the cells.
    pub(super) fn line(&self, row: &TableRow<'_>, reason: Option<&str>) -> String {
        let is_terminal = self.style.width.is_some();
        let keys = if is_terminal { wrap_key(row.key, self.key) } else { vec![row.key.into()] };
        let lines = match reason {
            Some(reason) => self.without_estimate(row, reason),
            None => {
                let mut lines = self.blocks(row);
                if let (Some(first), Some(quality)) = (lines.first_mut(), row.quality) {
                    let end = self.lead_width(row) + first.chars().count() + 2 + quality.chars().count();
                    let quality = format!("  {}", self.style.quality(quality));
                    match self.style.width {
                        Some(width) if end >= width => {
                            lines.push(" ".repeat(self.count_width(row)) + &quality);
                        }
                        _ => *first += &quality,
                    }
                }
                lines
            }
        };
        self.beside_keys(row, &keys, &lines).join("\n")
    }

    /// Formats the count and the cells, `per_line` of them on a line.
    fn blocks(&self, row: &TableRow<'_>) -> Vec<String> {
        let block = |(line, cells): (usize, &[(usize, usize)])| -> String {
            let cell = |(position, &(index, width)): (usize, &(usize, usize))| {
                let cell = &row.cells[index];
                pad(&if line > 0 && position == 0 { cell.clone() } else { fit(cell, width) }, width)
            };
            cells.iter().enumerate().map(cell).collect()
        };
        let mut blocks: Vec<String> = self.cells.chunks(self.per_line).enumerate().map(block).collect();
        if blocks.is_empty() {
            blocks.push(String::new());
        }
        self.after_count(row, blocks)
    }

    /// Formats the count and the reason why there is no estimate, in one word if the line has one.
    fn without_estimate(&self, row: &TableRow<'_>, reason: &str) -> Vec<String> {
        let why = row.quality.map_or_else(|| reason.to_owned(), |word| word.replace('-', " "));
        let lead = self.lead_width(row);
        let before_text = lead + self.count_width(row);
        let room = self.style.width.map_or(usize::MAX, |width| width.saturating_sub(before_text + 3));
        let lines = wrap_words(&format!("no estimate: {why}"), room.max(16));
        self.after_count(row, lines.iter().map(|line| format!("  {}", self.style.faint(line))).collect())
    }

    /// Puts the count before the first line, and spaces before the others, or on a line of its own.
    fn after_count(&self, row: &TableRow<'_>, lines: Vec<String>) -> Vec<String> {
        let Some(count) = &row.count else { return lines };
        if self.is_stacked {
            return std::iter::once(pad(count, self.first_width())).chain(lines).collect();
        }
        let counts = std::iter::once(count.as_str()).chain(std::iter::repeat(""));
        counts.zip(lines).map(|(count, line)| pad(count, self.count) + &line).collect()
    }

    /// Puts the fields that identify the row before its lines. The parts of a wrapped key are below
    /// one another.
    fn beside_keys(&self, row: &TableRow<'_>, keys: &[String], lines: &[String]) -> Vec<String> {
        let lead = self.lead_width(row);
        let indent = " ".repeat(lead - self.key);
        let join = |index: usize| {
            let key = keys.get(index).map_or("", String::as_str);
            let lead = match index {
                0 => self.lead(row, key),
                _ => format!("{indent}{key:<width$}", width = self.key),
            };
            (lead + lines.get(index).map_or("", String::as_str)).trim_end().to_owned()
        };
        (0..keys.len().max(lines.len())).map(join).collect()
    }

    /// Returns the characters before the count or the cells.
    fn lead_width(&self, row: &TableRow<'_>) -> usize {
        self.lead(row, "").chars().count()
    }

    /// Formats the fields that identify a line.
    fn lead(&self, row: &TableRow<'_>, key: &str) -> String {
        let mut text = String::new();
        if let Some(width) = self.epoch {
            text += &format!("{:>width$}  ", row.epoch);
        }
        if let Some(width) = self.start {
            let start = if self.is_brief { row.brief_start } else { row.start };
            text += &format!("{start:<width$}  ");
        }
        if let Some(view) = row.view {
            let view = if self.view < VIEW { cut(view, self.view) } else { view.into() };
            text += &format!("{view:<width$}  ", width = self.view);
        }
        text + &format!("{key:<width$}", width = self.key)
    }
}

fn pad(cell: &str, width: usize) -> String {
    format!(" {cell:>width$}")
}

/// Leaves out spaces of a number with its interval that is too wide, or cuts other text.
fn fit(cell: &str, width: usize) -> String {
    match cell.chars().count() > width {
        true => cut(&cell.replace(" ± ", "±").replace(" to ", ".."), width),
        false => cell.into(),
    }
}

/// Cuts a text to a width, with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

/// Breaks a key at the ends of its words, and words that are too long.
fn wrap_key(key: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in key.split_inclusive([' ', '-', '_', '/', '.', ',', ':', '|', '·']) {
        let length = |text: &str| text.trim_end().chars().count();
        let joined = lines.last().cloned().unwrap_or_default() + word;
        if length(&joined) <= width {
            lines.pop();
            lines.push(joined);
        } else {
            lines.extend(wrap_characters(word, width));
        }
    }
    lines.retain(|line| !line.is_empty());
    if lines.is_empty() {
        vec![String::new()]
    } else {
        lines.iter().map(|line| line.trim_end().into()).collect()
    }
}

/// Breaks a title between words, and words that are too long.
fn wrap_title(title: &str, width: usize) -> Vec<String> {
    wrap_words(title, width).iter().flat_map(|line| wrap_characters(line, width)).collect()
}

/// Cuts a text into parts of at most `width` characters.
fn wrap_characters(text: &str, width: usize) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let parts: Vec<String> = characters.chunks(width).map(|part| part.iter().collect()).collect();
    if parts.is_empty() { vec![String::new()] } else { parts }
}

#[cfg(test)]
mod tests;
