//! Shared test helpers: servers with scripted answers, and sections of one source or sink.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread::{JoinHandle, spawn};

use super::{
    DELIMITER, FORMAT, HEADER, Input, RecordFormat, SINK, SOURCE_PATH, Sink, TIME_FORMAT, source_groups,
};
use crate::document::definition::{FieldDefinition, FieldType, SectionDefinition};
use crate::document::{Document, Section};
use crate::format::Format;
use crate::format::form::{EntryParser, RowLayout};

/// Starts a server for one client and returns its address. Each answer with a word waits for a line
/// that contains the word. If it `is_endless`, endless bytes follow the last answer.
pub(super) fn serve(
    script: Vec<(Option<&'static str>, String)>,
    is_endless: bool,
) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut requests = BufReader::new(stream.try_clone().unwrap());
        for (word, answer) in script {
            let mut line = String::new();
            while word.is_some_and(|word| !line.contains(word)) {
                line.clear();
                assert!(requests.read_line(&mut line).unwrap() > 0, "the client is gone before {word:?}");
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
        let more = vec![b'7'; if is_endless { 1 << 20 } else { 0 }];
        while !more.is_empty() && stream.write_all(&more).is_ok() {}
    });
    (address, server)
}

/// A parser for which column `x` is a field of an entry or of a JSON object.
pub(super) fn form(format: Format) -> EntryParser {
    EntryParser::new(&RowLayout { format, header: None, wanted: vec!["x".into()] }, "s".as_ref()).unwrap()
}

/// The fields of a source that do not depend on a pipeline.
static SOURCE: SectionDefinition = SectionDefinition {
    fields: &[SOURCE_PATH, FORMAT, DELIMITER, HEADER, TIME_FORMAT],
    groups: source_groups,
    ..SectionDefinition::EMPTY
};

static SECTIONS: SectionDefinition = SectionDefinition {
    fields: &[
        FieldDefinition::optional("source", FieldType::Section(&SOURCE), "", "", ""),
        FieldDefinition::optional("sink", FieldType::Section(&SINK), "", "", ""),
    ],
    ..SectionDefinition::EMPTY
};

/// Reads a section with these fields, relative to the folder `dir`; the error lists all problems.
fn read<T>(
    key: &'static str,
    fields: &str,
    read: impl FnOnce(&Section<'_>) -> Option<T>,
) -> Result<T, String> {
    let text = format!("{key} = {{ {fields} }}");
    let document = Document::new(&text);
    let table = document.parse().unwrap();
    let section = Section::root(&document, &table, &SECTIONS).section(key).unwrap();
    let found = read(&section);
    section.finish(found.is_some());
    let problems: Vec<_> = document.into_problems().iter().map(ToString::to_string).collect();
    found.filter(|_| problems.is_empty()).ok_or_else(|| problems.join("\n"))
}

/// Reads a source with these fields.
pub(super) fn source_of(fields: &str) -> Result<(Input, Format), String> {
    read("source", fields, |section| {
        let paths = section.get("path")?.texts()?;
        let input = Input::read(section, &paths, "dir".as_ref())?;
        let format = RecordFormat::read(section, &paths, &input)?.format;
        Some((input, format))
    })
}

/// Reads a sink with these fields.
pub(super) fn sink_of(fields: &str) -> Result<Sink, String> {
    read("sink", fields, |section| Sink::read(section, "dir".as_ref()))
}
