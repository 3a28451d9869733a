//! Suggests similar names, for messages that ask "did you mean …?".

/// Returns the known word nearest to `found`, if at most a third of its letters differ, or one of
/// two letters.
pub fn closest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    let nearest = known.iter().map(|word| (edit_distance(found, word), *word)).min()?;
    let letters = found.chars().count();
    (nearest.0 < letters && nearest.0 * 3 <= letters.max(3)).then_some(nearest.1)
}

/// Suggests the known word nearest to `found`, as the end of a message. Empty if no word is near.
pub fn did_you_mean(found: &str, known: &[&str]) -> String {
    closest(found, known).map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default()
}

/// Returns the header name that `wanted` must mean. They may differ in case and blanks, or in one
/// letter of three, at most two letters in all. A header may be a row of data by mistake, so
/// numbers and less similar names are never returned.
pub fn misspelt<'a>(wanted: &str, header: &[&'a str]) -> Option<&'a str> {
    let plain = |name: &str| name.split_whitespace().collect::<String>().to_lowercase();
    let wanted = plain(wanted);
    let limit = (wanted.chars().count() / 3).min(2);
    let near = header.iter().map(|name| (edit_distance(&wanted, &plain(name)), *name)).min()?;
    (near.0 <= limit && near.1.trim().parse::<f64>().is_err()).then_some(near.1)
}

/// Returns the number of insertions, deletions and replacements between two words (Levenshtein).
fn edit_distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.chars().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.chars().count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_between_words() {
        let check = |from, to, distance| assert_eq!(edit_distance(from, to), distance, "{from} {to}");
        check("", "abc", 3);
        check("lenght", "length", 2);
        check("kitten", "sitting", 3);
        check("same", "same", 0);
    }

    #[test]
    fn only_near_words_are_suggested() {
        let check = |found, expected| assert_eq!(closest(found, &["length", "late", "horizon"]), expected);
        check("lenght", Some("length"));
        check("horizons", Some("horizon"));
        check("colour", None);
    }

    #[test]
    fn a_row_of_data_is_not_reported_as_a_misspelt_header() {
        let check = |wanted, header: &[&str], expected| assert_eq!(misspelt(wanted, header), expected);
        check("dep_delay", &["Dep_Delay", "distance"], Some("Dep_Delay"));
        check("dep_delay", &["dep _delay"], Some("dep _delay"));
        check("dep_delay", &["depdely"], Some("depdely"));
        check("dep_delay", &["depdel"], None);
        check("age", &["Age "], Some("Age "));
        check("age", &["ag"], Some("ag"));
        check("x", &["7", "y", ""], None);
        check("2013", &["2014"], None);
        check("infx", &["inf"], None);
        check("age", &[], None);
    }
}
