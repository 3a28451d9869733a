//! Sections `[[sinks]]`: the scheme of the path selects the kind of sink.

use std::path::Path;

use super::source::{broker, has_port, protocol};
use crate::document::{Field, Section};
use crate::pipeline::{Protocol, ReleaseFile, ReleaseStream, Rotation, Sink};

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
        (Sink::Stream(stream), Sink::Stream(other)) => stream.broker == other.broker,
        (Sink::Events(address), Sink::Events(other)) => address == other && !address.ends_with(":0"),
        _ => false,
    }
}

fn sink(section: &Section<'_>, base: &Path) -> Option<Sink> {
    let path = section.require("path", section.text("path"), "path = \"out/releases.ndjson\"");
    let options = Options {
        rotate: section.text("rotate").map(|field| field.map(|text| rotation(text))),
        stream: section.text("stream"),
        subject: section.text("subject"),
        keep: section.text("keep").map(|field| field.map(|text| epochs(text))),
    };
    let sink = path.and_then(|path| match path.value.split_once("://") {
        None => file(path, &options, base),
        Some(("http-listen", place)) if has_port(place) => Some(Sink::Events(place.into())),
        Some((scheme, place)) => match protocol(scheme) {
            Some(Ok(protocol)) => stream(section, &path, &options, protocol, place),
            Some(Err(problem)) => {
                path.report(problem);
                None
            }
            None => {
                // Don't print the path: it may hold a password.
                path.report(format!("expected {PLACES}"));
                None
            }
        },
    });
    section.finish();
    let sink = sink?;
    options.check(&sink);
    Some(sink)
}

const PLACES: &str = "a file such as \"out/releases.ndjson\", or redis://host:port, nats://host:port, kafka://host:port or \
    http-listen://address:port";

/// Optional fields of sinks. An inner `None` has been reported.
struct Options<'a> {
    rotate: Option<Option<Field<'a, Rotation>>>,
    stream: Option<Field<'a, &'a str>>,
    subject: Option<Field<'a, &'a str>>,
    keep: Option<Option<Field<'a, u64>>>,
}

impl Options<'_> {
    /// Reports fields that don't apply to the kind of sink.
    fn check(&self, sink: &Sink) {
        let protocol = match sink {
            Sink::Stream(stream) => Some(stream.broker.protocol),
            _ => None,
        };
        if let Some(Some(rotate)) = &self.rotate
            && !matches!(sink, Sink::File(_))
        {
            rotate.report("only files are rotated: leave it out");
        }
        if let (Some(stream), None) = (&self.stream, protocol) {
            stream.report("the name of a stream is for redis://, nats:// and kafka://: leave it out");
        }
        if let Some(subject) = &self.subject
            && protocol != Some(Protocol::Nats)
        {
            subject.report("a subject is for nats://: leave it out");
        }
        if let Some(Some(keep)) = &self.keep
            && protocol != Some(Protocol::Redis)
        {
            keep.report("keep is only for redis://: leave it out");
        }
    }
}

fn file(path: Field<'_, &str>, options: &Options<'_>, base: &Path) -> Option<Sink> {
    let path = path.filter("a file of JSON lines, such as \"out/releases.ndjson\"", |path| {
        Path::new(path).extension().is_some_and(|extension| extension == "ndjson" || extension == "jsonl")
    })?;
    let rotate = match &options.rotate {
        None => None,
        Some(rotate) => Some(rotate.as_ref()?.value),
    };
    Some(Sink::File(ReleaseFile { path: base.join(path.value), rotate }))
}

fn stream<'a>(
    section: &Section<'a>,
    path: &Field<'a, &'a str>,
    options: &Options<'a>,
    protocol: Protocol,
    place: &str,
) -> Option<Sink> {
    let broker = broker(section, path, options.stream.as_ref(), protocol, place);
    let subject = options.subject.as_ref().map(|subject| subject.value);
    let is_plain = |subject: &str| {
        let odd = |c: char| c.is_whitespace() || c.is_control() || "*>".contains(c);
        !subject.contains(odd) && !subject.starts_with('$') && subject.split('.').all(|part| !part.is_empty())
    };
    if let (Some(subject), Some(false)) = (&options.subject, subject.map(is_plain)) {
        subject.report("expected a subject without wildcards, such as \"releases\"");
        return None;
    }
    let keep = match &options.keep {
        None => None,
        Some(keep) => Some(keep.as_ref()?.value),
    };
    let broker = broker?;
    let subject = subject.unwrap_or(&broker.stream).into();
    Some(Sink::Stream(ReleaseStream { broker, subject, keep }))
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

fn epochs(text: &str) -> Result<u64, String> {
    match rotation(text) {
        Ok(Rotation::Epochs(epochs)) => Ok(epochs),
        _ => Err(format!("found {text:?}, expected a number such as \"1000 epochs\"")),
    }
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
        let stream = |sink: &str| match parse(sink).as_deref() {
            Ok([Sink::Stream(stream)]) => {
                Some((stream.broker.address.clone(), stream.subject.clone(), stream.keep))
            }
            _ => None,
        };
        let redis = stream("{ path = 'redis://h', stream = 's', keep = '5 epochs' }");
        assert_eq!(redis, Some(("h:6379".into(), "s".into(), Some(5))));
        let nats = stream("{ path = 'nats://h:1', stream = 's', subject = 'a.b' }");
        assert_eq!(nats, Some(("h:1".into(), "a.b".into(), None)));
        let events = parse("{ path = 'http-listen://127.0.0.1:0' }");
        assert_eq!(events, Ok(vec![Sink::Events("127.0.0.1:0".into())]));
        for (sinks, part) in [
            ("{ path = 'redis://h' }", "stream"),
            ("{ path = 'redis://h', stream = 's', subject = 'a' }", "subject"),
            ("{ path = 'redis://h', stream = 's', keep = '5 MiB' }", "1000 epochs"),
            ("{ path = 'nats://h', stream = 's', subject = 'a.*' }", "wildcards"),
            ("{ path = 'nats://h', stream = 's', rotate = '5 epochs' }", "rotated"),
            ("{ path = 'nats://h', stream = 's', keep = '5 epochs' }", "redis://"),
            ("{ path = 'a.ndjson', stream = 's' }", "leave it out"),
            ("{ path = 'http-listen://127.0.0.1' }", "http-listen://address:port"),
            ("{ path = 'ftp://h' }", "http-listen://address:port"),
            ("{ path = 'nats://h', stream = 's' }, { path = 'nats://h:4222', stream = 's' }", "same path"),
        ] {
            assert!(parse(sinks).is_err_and(|error| error.contains(part)), "{sinks}");
        }
    }
}
