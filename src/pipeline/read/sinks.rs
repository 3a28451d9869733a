//! The sections `[[sinks]]`.

use std::path::Path;

use crate::pipeline::document::Section;
use crate::pipeline::{Rotation, Sink};

pub(super) fn sinks(root: &Section<'_>, base: &Path) -> Option<Vec<Sink>> {
    let sinks: Option<Vec<Sink>> = root.sections("sinks").iter().map(|section| sink(section, base)).collect();
    let sinks = sinks?;
    let twice =
        sinks.iter().enumerate().any(|(i, sink)| sinks[..i].iter().any(|other| other.path == sink.path));
    if twice {
        root.report("two [[sinks]] have the same path: each writes a file of its own");
    }
    Some(sinks)
}

fn sink(section: &Section<'_>, base: &Path) -> Option<Sink> {
    let path = section.require("path", section.text("path"), "path = \"out/releases.ndjson\"");
    let path = path.and_then(|path| {
        path.filter("a file of JSON lines, such as \"out/releases.ndjson\"", |path| {
            Path::new(path).extension().is_some_and(|extension| extension == "ndjson" || extension == "jsonl")
        })
    });
    let rotate = section.text("rotate").map(|field| field.map(|text| rotation(text)));
    section.finish();
    let rotate = match rotate {
        None => None,
        Some(field) => Some(field?.value),
    };
    Some(Sink { path: base.join(path?.value), rotate })
}

fn rotation(text: &str) -> Result<Rotation, String> {
    let units = [("epochs", 0), ("epoch", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let found = units.iter().find_map(|&(unit, shift)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok().filter(|&number| number > 0)?;
        if shift == 0 {
            Some(Rotation::Epochs(number))
        } else {
            number.checked_mul(1 << shift).map(Rotation::Bytes)
        }
    });
    found.ok_or_else(|| {
        format!("found {text:?}, expected a size such as \"100 epochs\", \"64 MiB\" or \"1 GiB\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let check = |text, expected| assert_eq!(rotation(text).ok(), expected, "{text}");
        check("100 epochs", Some(Rotation::Epochs(100)));
        check("1epoch", Some(Rotation::Epochs(1)));
        check("64 MiB", Some(Rotation::Bytes(64 << 20)));
        check("1 GiB", Some(Rotation::Bytes(1 << 30)));
        check("99999999999999 GiB", None);
        check("0 epochs", None);
        check("10", None);
        check("-1 MiB", None);
    }
}
