//! Help texts that fit the terminal. Commands of examples break only at `\`.

use std::ffi::OsString;
use std::iter::once;

use clap::{Command, CommandFactory, FromArgMatches};
use console::Term;

use super::Arguments;

/// Maximum width of a text, and the width without a terminal.
const WIDEST: usize = 100;

/// The name of the program.
const PROGRAM: &str = "hushflow";

/// Minimum width of a text with descriptions beside their flags instead of below.
const NARROW: usize = 60;

/// Reads arguments. If they request help or are invalid, prints help or an error and exits.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Arguments {
    let terminal = [Term::stdout(), Term::stderr()].iter().find_map(Term::size_checked);
    let width = terminal.map_or(WIDEST, |(_, width)| usize::from(width).clamp(20, WIDEST));
    let matches = command(width).term_width(width).get_matches_from(arguments);
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Returns the command line with notes and examples of this width.
pub(super) fn command(width: usize) -> Command {
    let fit = move |command: Command| {
        let command = with_usage(command, width);
        match command.get_after_help().map(ToString::to_string) {
            Some(text) => command.after_help(fitted(&text, width)),
            None => command,
        }
    };
    fit(Arguments::command()).mut_subcommands(fit).next_line_help(width < NARROW)
}

/// Breaks the usage of a command before its flags and arguments, if it is wider than `width`.
fn with_usage(command: Command, width: usize) -> Command {
    let name = command.get_name();
    let full = if name == PROGRAM { name.into() } else { format!("{PROGRAM} {name}") };
    let usage = command.clone().bin_name(full).render_usage().to_string();
    if usage.lines().all(|line| line.chars().count() <= width) {
        return command;
    }
    let mut parts: Vec<String> = Vec::new();
    for word in usage.split_whitespace().skip(1) {
        match parts.last_mut() {
            // A flag stays on the line of its value.
            Some(part) if part.starts_with("--") && !part.contains(' ') => part.extend([" ", word]),
            _ => parts.push(word.into()),
        }
    }
    let lead = "Usage: ".len();
    let lines = broken(parts.iter().map(String::as_str), &" ".repeat(lead), lead, width, "");
    command.override_usage(lines.join("\n").trim_start().to_owned())
}

/// Breaks lines that are wider than `width`.
fn fitted(text: &str, width: usize) -> String {
    let mut is_example = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        is_example = line.starts_with("Example") || is_example && !line.is_empty();
        match line.starts_with(' ') && is_example {
            true => lines.extend(example(line, width)),
            false => lines.extend(paragraph(line, width)),
        }
    }
    lines.join("\n")
}

/// Breaks a line between words. The description in a list stays in its column.
fn paragraph(line: &str, width: usize) -> Vec<String> {
    let indent = line.len() - line.trim_start().len();
    let description = line[indent..].find("  ").map(|end| {
        let gap = line[indent + end..].chars().take_while(|&c| c == ' ').count();
        (indent + end, line[..indent + end].chars().count() + gap)
    });
    match description {
        Some((end, column)) if indent > 0 && column < width / 2 => {
            let gap = " ".repeat(column - line[..end].chars().count());
            let lead = format!("{}{gap}", &line[..end]);
            broken(line[end..].split_whitespace(), &lead, column, width, "")
        }
        _ => broken(line.split_whitespace(), &" ".repeat(indent), indent, width, ""),
    }
}

/// Breaks a command before its flags and operators, and moves the note after it to the next line.
fn example(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width {
        return vec![line.into()];
    }
    let indent = line.len() - line.trim_start().len();
    let (command, note) = match line[indent..].split_once("   ") {
        Some((command, note)) => (command, note.trim()),
        None => (&line[indent..], ""),
    };
    let mut parts: Vec<String> = Vec::new();
    for word in command.split(' ') {
        let starts = word.starts_with('-') || ["|", ">", "&&"].contains(&word);
        match parts.last_mut() {
            Some(part) if !starts && part != "\\" || word == "\\" => part.extend([" ", word]),
            _ => parts.push(word.into()),
        }
    }
    let parts = parts.iter().map(String::as_str);
    let mut lines = broken(parts, &" ".repeat(indent), indent + 4, width, " \\");
    if !note.is_empty() {
        let indent = " ".repeat(indent + 4);
        lines.extend(broken(note.split_whitespace(), &indent, indent.len(), width, ""));
    }
    lines
}

/// Appends words to `lead`, in lines that end in `mark` if they are continued.
fn broken<'a>(
    words: impl Iterator<Item = &'a str>,
    lead: &str,
    indent: usize,
    width: usize,
    mark: &str,
) -> Vec<String> {
    let mut lines = vec![lead.to_owned()];
    let mut is_first = true;
    let room = width.saturating_sub(mark.len());
    for word in words {
        let Some(line) = lines.last_mut() else { break };
        if !is_first && line.chars().count() + 1 + word.chars().count() > room {
            line.push_str(mark);
            lines.push(once(" ".repeat(indent)).chain([word.into()]).collect());
        } else {
            line.extend([if is_first { "" } else { " " }, word]);
        }
        is_first = false;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_break_before_flags_and_operators() {
        let text =
            "Examples:\n  hushflow tail state --view moments --format csv > moments.csv   (a note on it)";
        let expected = "\
Examples:
  hushflow tail state \\
      --view moments \\
      --format csv \\
      > moments.csv
      (a note on it)";
        assert_eq!(fitted(text, 24), expected);
        assert_eq!(fitted(text, 200), text);
    }

    #[test]
    fn descriptions_stay_in_their_column() {
        let text = "Methods:\n  auto    the smaller error bound of both";
        assert_eq!(fitted(text, 30), "Methods:\n  auto    the smaller error\n          bound of both");
        assert_eq!(fitted("One claim. Another one.\n\nA third.", 12), "One claim.\nAnother one.\n\nA third.");
    }

    /// Paths and arguments of examples are not broken.
    #[test]
    fn no_help_is_wider_than_the_terminal() {
        for width in [40, 60, 80, 100] {
            let mut all = command(width).term_width(width);
            all.build();
            for command in all.get_subcommands_mut() {
                let text = command.render_long_help().to_string();
                let is_wide = |line: &&str| line.chars().count() > width && line.trim().contains(' ');
                assert_eq!(text.lines().find(is_wide), None, "{width}: {text}");
            }
        }
    }

    #[test]
    fn usage_breaks_between_arguments() {
        let usage = |width| {
            let mut all = command(width);
            all.build();
            all.find_subcommand_mut("query").map(|command| command.render_usage().to_string())
        };
        let whole = "Usage: hushflow query [OPTIONS] --workload <WORKLOAD> <FILE>";
        assert_eq!(usage(100).as_deref(), Some(whole));
        let broken = "Usage: hushflow query [OPTIONS]\n       --workload <WORKLOAD> <FILE>";
        assert_eq!(usage(40).as_deref(), Some(broken));
    }
}
