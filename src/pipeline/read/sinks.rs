//! Sections `[[sinks]]`: the scheme of the path selects the kind of sink.

use std::path::Path;

use crate::connect::{StreamSink, Text, has_port, listed, refuse_sink_fields, sink_paths};
use crate::document::{Field, Section};
use crate::pipeline::{ReleaseFile, Rotation, Sink};

pub(super) fn sinks(root: &Section<'_>, base: &Path) -> Option<Vec<Sink>> {
    let sinks: Option<Vec<Sink>> = root.sections("sinks").iter().map(|section| sink(section, base)).collect();
    let sinks = sinks?;
    let twice = sinks.iter().enumerate().any(|(i, sink)| sinks[..i].iter().any(|other| is_same(sink, other)));
    if twice {
        root.report("two [[sinks]] have the same path: give each its own");
    }
    Some(sinks)
}

/// Whether two sinks have the same destination.
fn is_same(sink: &Sink, other: &Sink) -> bool {
    match (sink, other) {
        (Sink::File(file), Sink::File(other)) => file.path == other.path,
        (Sink::Stream(stream), Sink::Stream(other)) => stream.stream().place() == other.stream().place(),
        (Sink::Events(address), Sink::Events(other)) => address == other && !address.ends_with(":0"),
        _ => false,
    }
}

fn sink(section: &Section<'_>, base: &Path) -> Option<Sink> {
    let path = section.require("path", section.text("path"), "path = \"out/releases.ndjson\"");
    // An inner `None` has been reported.
    let rotate = section.text("rotate").map(|field| field.map(|text| rotation(text)));
    let scheme = path.as_ref().and_then(|path| path.value.split_once("://")).map(|(scheme, _)| scheme);
    let sink = path.and_then(|path| match path.value.split_once("://") {
        None => file(path, &rotate, base),
        Some(("http-listen", place)) if has_port(place) => Some(Sink::Events(place.into())),
        Some(place) => match StreamSink::read(section, &path, place) {
            Some(stream) => stream.map(Sink::Stream),
            None => {
                // Don't print the path: it may hold a password.
                let http = "http-listen://address:port".into();
                let places = listed(sink_paths().chain([http]), "or");
                path.report(format!("expected a file such as \"out/releases.ndjson\", or {places}"));
                None
            }
        },
    });
    refuse_sink_fields(section, scheme);
    section.finish();
    let sink = sink?;
    if let (Some(Some(rotate)), false) = (rotate, matches!(sink, Sink::File(_))) {
        rotate.report("only files are rotated: leave it out");
    }
    Some(sink)
}

fn file(path: Text<'_>, rotate: &Option<Option<Field<'_, Rotation>>>, base: &Path) -> Option<Sink> {
    let path = path.filter("a file of JSON lines, such as \"out/releases.ndjson\"", |path| {
        Path::new(path).extension().is_some_and(|extension| extension == "ndjson" || extension == "jsonl")
    })?;
    let rotate = match rotate {
        None => None,
        Some(rotate) => Some(rotate.as_ref()?.value),
    };
    Some(Sink::File(ReleaseFile { path: base.join(path.value), rotate }))
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
    use crate::pipeline::Pipeline;

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

    fn parse(sinks: &str) -> Result<Vec<Sink>, String> {
        let text = format!(
            "name = 'n'\nsource = {{ path = 'a.csv' }}\ncolumns = [{{ name = 'x', lower = 0, upper = 1 }}]
            privacy = {{ epsilon = 1, delta = 1e-6 }}\nepochs = {{ records = 2, horizon = 9 }}\nsinks = [{sinks}]"
        );
        let pipeline = Pipeline::parse(&text, "dir/p.toml".as_ref());
        pipeline.map(|pipeline| pipeline.sinks).map_err(|error| error.to_string())
    }

    #[test]
    fn every_kind_of_sink_has_its_form() {
        let events = parse("{ path = 'http-listen://127.0.0.1:0' }");
        assert_eq!(events, Ok(vec![Sink::Events("127.0.0.1:0".into())]));
        for (sinks, part) in [
            ("{ path = 'redis://h' }", "stream"),
            ("{ path = 'nats://h', stream = 's', rotate = '5 epochs' }", "rotated"),
            ("{ path = 'a.ndjson', stream = 's' }", "leave it out"),
            ("{ path = 'http-listen://127.0.0.1' }", "http-listen://address:port"),
            ("{ path = 'ftp://h' }", "http-listen://address:port"),
            ("{ path = 'nats://h', stream = 's' }, { path = 'nats://h:4222', stream = 's' }", "same path"),
        ] {
            assert!(parse(sinks).is_err_and(|error| error.contains(part)), "{sinks}");
        }
    }
}
