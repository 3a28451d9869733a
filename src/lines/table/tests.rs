//! Tests of the layout of tables.

use super::*;

const TITLES: [&str; 6] = ["mean a", "mean b", "mean c", "sd a", "sd b", "sd c"];

fn row<'a>(key: &'a str, cells: &[&str]) -> TableRow<'a> {
    let cells = cells.iter().map(ToString::to_string).collect();
    let (epoch, start, count) = ("7", "2013-01-07T05:00", Some("810 ± 29".into()));
    TableRow { epoch, start, brief_start: &start[..10], view: None, key, count, cells, quality: Some("good") }
}

fn lines(style: &TableStyle, key: &str, longest: usize) -> Vec<String> {
    let header = TableRow { start: "from", brief_start: "from", ..row("key", &TITLES) };
    let header = TableRow { count: Some("count".into()), ..header };
    let titles = TITLES.map(String::from);
    let layout = TableLayout::new(
        style,
        &titles,
        &header,
        TableSizes { horizon: 365, longest_key: longest, start: 16, brief_start: 10 },
    );
    let line = layout.line(&row(key, &["1.5 ± 0.1"; 6]), None);
    let without = layout.line(&row(key, &[]), Some("the count is 3 with noise of deviation 29"));
    let text = [layout.titles(&header), line, without].join("\n");
    text.lines().map(String::from).collect()
}

#[test]
fn every_line_fits_the_terminal() {
    for (width, columns) in (40..200).flat_map(|width| [(width, vec![]), (width, vec!["a", "sd"])]) {
        let columns = columns.into_iter().map(String::from).collect();
        let style = TableStyle { width: Some(width), columns, ..TableStyle::default() };
        for line in lines(&style, "La Guardia Airport, New York", 28) {
            assert!(line.chars().count() < width, "{width}: {line}");
        }
    }
}

#[test]
fn chosen_cells_that_do_not_fit_follow_on_further_lines() {
    let columns = ["mean a", "sd"].map(String::from).to_vec();
    let style = TableStyle { width: Some(60), columns, ..TableStyle::default() };
    let lines = lines(&style, "JFK", 3);
    let expected = [
        "    7  key          count           mean a  good",
        "                                      sd a",
        "                                      sd b",
        "                                      sd c",
        "    7  JFK       810 ± 29        1.5 ± 0.1  good",
        "                                 1.5 ± 0.1",
        "                                 1.5 ± 0.1",
        "                                 1.5 ± 0.1",
        "    7  JFK       810 ± 29  no estimate: good",
    ];
    assert_eq!(lines, expected);
}

/// Titles that are too long follow on further lines, from below the key on a narrow terminal.
#[test]
fn no_title_is_cut() {
    let titles = ["mean of_the_temperature_in_the_room_at_noon", "sd of_the_temperature"].map(String::from);
    let header =
        TableRow { start: "from", brief_start: "from", count: Some("count".into()), ..row("key", &[]) };
    let header = TableRow { cells: titles.to_vec(), ..header };
    for (width, columns) in (40..120).flat_map(|width| [(width, vec![]), (width, vec!["mean", "sd"])]) {
        let columns: Vec<String> = columns.into_iter().map(String::from).collect();
        let style = TableStyle { width: Some(width), columns, ..TableStyle::default() };
        let sizes = TableSizes { horizon: 365, longest_key: 3, start: 16, brief_start: 10 };
        let text = TableLayout::new(&style, &titles, &header, sizes).titles(&header);
        assert!(text.lines().all(|line| line.chars().count() < width), "{width}: {text}");
        let letters: String = text.split_whitespace().collect();
        // Parts of neighbouring titles alternate.
        let is_alone = !text.contains("sd");
        let has = |title: &String| title.split(' ').all(|word| letters.contains(word));
        assert!(!letters.contains('…') && (!is_alone || has(&titles[0])), "{text}");
    }
}

#[test]
fn numbers_lose_spaces_before_digits() {
    assert_eq!(fit("3.69958 ± 0.00012", 16), "3.69958±0.00012");
    assert_eq!(fit("-0.00012 to 0.00034", 18), "-0.00012..0.00034");
    assert_eq!(fit("1.5 ± 0.1", 16), "1.5 ± 0.1");
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
                TableSizes { horizon: 9, longest_key: 3, start: 16, brief_start: 10 }
            )
            .cells
            .iter()
            .map(|&(index, _)| index)
            .collect::<Vec<_>>(),
            expected
        );
    };
    check(&["b"], &[1, 4]);
    check(&["sd"], &[3, 4, 5]);
    check(&["mean c", "a"], &[0, 2, 3]);
    let style = TableStyle { columns: vec!["a".into(), "d".into()], ..TableStyle::default() };
    assert_eq!(style.unknown(&TITLES.map(String::from)), Some("d"));
    check(&["b,sd"], &[1, 3, 4, 5]);
    let style = TableStyle { columns: vec!["a, x".into(), "b,y".into()], ..TableStyle::default() };
    let titles = ["mean a, x", "mean b", "mean x"].map(String::from);
    assert!(style.chooses(&titles[0]) && style.chooses(&titles[1]));
    assert_eq!(style.unknown(&titles), Some("y"));
}

#[test]
fn long_keys_are_wrapped_below_their_column() {
    let style = TableStyle { width: Some(100), ..TableStyle::default() };
    let lines = lines(&style, &"k".repeat(30), 30);
    let column = lines[0].find("key").unwrap();
    assert_eq!(lines[2], format!("{}kkkkk", " ".repeat(column)));
    assert!(lines[1].ends_with("good") && lines[3].ends_with("no estimate: good"), "{lines:?}");
}

/// On 80 columns the date of a daily epoch stays. Its number is left out to fit a second number.
#[test]
fn what_says_least_is_left_out_first() {
    let of = |width| lines(&TableStyle { width: Some(width), ..TableStyle::default() }, "JFK", 3);
    assert!(of(120)[1].starts_with("    7  2013-01-07T05:00  JFK"), "{:?}", of(120));
    let narrow = of(80);
    assert!(
        narrow[0].starts_with("from        key") && narrow[1].starts_with("2013-01-07  JFK"),
        "{narrow:?}"
    );
    assert_eq!(narrow[1].matches("1.5 ± 0.1").count(), 2);
}

#[test]
fn keys_are_wrapped_at_the_ends_of_words() {
    let check = |key: &str, width, expected: &[&str]| assert_eq!(wrap_key(key, width), expected, "{key}");
    check("La Guardia Airport", 10, &["La Guardia", "Airport"]);
    check("north-east/river_bank", 11, &["north-east/", "river_bank"]);
    check("Kaltenbrunnersdorf am See", 10, &["Kaltenbrun", "nersdorf", "am See"]);
    check("", 5, &[""]);
}

#[test]
fn a_pipe_has_all_cells_and_no_colours() {
    let lines = lines(&TableStyle::default(), "JFK", 3);
    assert_eq!(lines[1].matches("1.5 ± 0.1").count(), 6);
    assert!(lines[2].ends_with("no estimate: good"), "{lines:?}");
    assert!(!lines.concat().contains('\x1b'));
}

#[test]
fn colours_do_not_move_columns() {
    let style = TableStyle { width: Some(100), colours: true, ..TableStyle::default() };
    let line = &lines(&style, "JFK", 3)[1];
    assert!(line.ends_with("  \x1b[32mgood\x1b[0m"), "{line}");
}
