//! Reads a TOML document: values keep their position, and all problems of a file are reported at
//! once.
//!
//! A [`Section`] returns the fields of one table. An invalid field adds a [`PipelineProblem`] with
//! its line, column and dotted name, and reads as absent. [`Section::finish`] reports fields that were
//! never read.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::spelling::closest;

/// A problem in a pipeline file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PipelineProblem {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The dotted name of the field or table, such as `columns[1].upper`; empty for a syntax error.
    pub field: String,
    /// What was found, what was expected and how to fix it.
    pub message: String,
}

impl fmt::Display for PipelineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.field.is_empty() { "" } else { ": " };
        write!(f, "{}:{}: {}{separator}{}", self.line, self.column, self.field, self.message)
    }
}

/// The text of a document and the problems found in it so far.
pub(crate) struct Document<'a> {
    text: &'a str,
    problems: RefCell<Vec<PipelineProblem>>,
}

impl<'a> Document<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Document { text, problems: RefCell::default() }
    }

    pub(crate) fn parse(&self) -> Option<DeTable<'a>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            let hint =
                if error.message().starts_with("invalid boolean") { "; text needs quotes" } else { "" };
            self.report(error.span().unwrap_or(0..0), "", format!("{}{hint}", error.message()));
        }
        errors.is_empty().then(|| table.into_inner())
    }

    fn report(&self, span: Range<usize>, field: &str, message: impl Into<String>) {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        self.problems.borrow_mut().push(PipelineProblem {
            line,
            column,
            field: field.into(),
            message: message.into(),
        });
    }

    /// Returns the problems in file order.
    pub(crate) fn into_problems(self) -> Vec<PipelineProblem> {
        let mut problems = self.problems.into_inner();
        problems.sort();
        problems
    }
}

/// A table whose fields are being read.
pub(crate) struct Section<'a> {
    document: &'a Document<'a>,
    table: &'a DeTable<'a>,
    name: String,
    span: Range<usize>,
    read_keys: RefCell<Vec<&'static str>>,
}

/// A value with its position, so that problems can be reported later.
pub(crate) struct Field<'a, T> {
    document: &'a Document<'a>,
    pub(crate) name: String,
    span: Range<usize>,
    pub(crate) value: T,
}

impl<'a> Section<'a> {
    pub(crate) fn root(document: &'a Document<'a>, table: &'a DeTable<'a>) -> Self {
        Section { document, table, name: String::new(), span: 0..0, read_keys: RefCell::default() }
    }

    /// Returns the field `key` if present.
    pub(crate) fn get(&self, key: &'static str) -> Option<Field<'a, &'a DeValue<'a>>> {
        if !self.read_keys.borrow().contains(&key) {
            self.read_keys.borrow_mut().push(key);
        }
        let (found, value) = self.table.iter().find(|(found, _)| found.get_ref() == key)?;
        let name = self.dotted(found.get_ref());
        Some(Field { document: self.document, name, span: value.span(), value: value.get_ref() })
    }

    /// Returns the text `key` if present.
    pub(crate) fn text(&self, key: &'static str) -> Option<Field<'a, &'a str>> {
        self.get(key)?.text()
    }

    /// Returns the finite number `key` if present; integers are accepted.
    pub(crate) fn number(&self, key: &'static str) -> Option<Field<'a, f64>> {
        self.get(key)?.read("a finite number", number_value)
    }

    /// Returns the number `key`, above zero, if present.
    pub(crate) fn positive(&self, key: &'static str) -> Option<Field<'a, f64>> {
        self.number(key)?.filter("a number above 0", |&x| x > 0.0)
    }

    /// Returns the whole number `key`, at least `least`, if present.
    pub(crate) fn count(&self, key: &'static str, least: u64) -> Option<Field<'a, u64>> {
        self.get(key)?.read(&format!("a whole number from {least}"), |value| match value {
            DeValue::Integer(integer) => {
                u64::try_from(integer_value(integer)?).ok().filter(|&count| count >= least)
            }
            _ => None,
        })
    }

    /// Returns the boolean `key` if present.
    pub(crate) fn flag(&self, key: &'static str) -> Option<bool> {
        self.get(key)?.read("true or false", DeValue::as_bool).map(|field| field.value)
    }

    /// Returns the value of the word `key` if present.
    pub(crate) fn word<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.word_beside(key, words, &[])
    }

    /// Returns the value of the word `key` if present. Error messages also list `others`, which are
    /// valid elsewhere.
    pub(crate) fn word_beside<T: Copy>(
        &self,
        key: &'static str,
        words: &[(&str, T)],
        others: &[&str],
    ) -> Option<T> {
        let field = self.text(key)?;
        let found = words.iter().find(|(word, _)| *word == field.value);
        if found.is_none() {
            let names = words.iter().map(|(word, _)| word).chain(others);
            let expected: Vec<_> = names.map(|word| format!("{word:?}")).collect();
            field.report(format!("found {:?}, expected {}", field.value, expected.join(" or ")));
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// Returns the table `key` if present.
    pub(crate) fn section(&self, key: &'static str) -> Option<Section<'a>> {
        self.get(key)?.section()
    }

    /// Returns the table `key` if present, without reporting problems.
    pub(crate) fn peek(&self, key: &str) -> Option<Section<'a>> {
        let value = self.table.get(key)?;
        let table = value.get_ref().as_table()?;
        let (document, name, span) = (self.document, self.dotted(key), value.span());
        Some(Section { document, table, name, span, read_keys: RefCell::default() })
    }

    /// Returns the text `key` if present, without reporting problems.
    pub(crate) fn peek_text(&self, key: &str) -> Option<&'a str> {
        self.table.get(key)?.get_ref().as_str()
    }

    /// Returns all fields of a table whose keys are free.
    pub(crate) fn entries(&self) -> Vec<(&'a str, Field<'a, &'a DeValue<'a>>)> {
        let fields = self.table.iter().map(|(key, value)| {
            let key: &'a str = key.get_ref();
            let (document, name, span) = (self.document, self.dotted(key), value.span());
            (key, Field { document, name, span, value: value.get_ref() })
        });
        fields.collect()
    }

    /// Returns the tables `[[key]]`; empty if absent.
    pub(crate) fn sections(&self, key: &'static str) -> Vec<Section<'a>> {
        let array = self.get(key).and_then(|field| field.read("tables [[…]]", DeValue::as_array));
        array.map(|array| array.items().filter_map(Field::section).collect()).unwrap_or_default()
    }

    /// Returns `value`. Reports `key` as missing if the table has no such field.
    pub(crate) fn require<T>(&self, key: &str, value: Option<T>, example: &str) -> Option<T> {
        if value.is_none() && self.table.get(key).is_none() {
            self.report(format!("the field {key} is missing: add for example {example}"));
        }
        value
    }

    /// Reports a problem of the whole table.
    pub(crate) fn report(&self, message: impl Into<String>) {
        self.document.report(self.span.clone(), &self.name, message);
    }

    /// Reports the fields that were never read.
    pub(crate) fn finish(&self) {
        let read_keys = self.read_keys.borrow();
        for (key, _) in self.table {
            let found: &str = key.get_ref();
            if !read_keys.contains(&found) {
                let name = self.dotted(found);
                let hint = match closest(found, &read_keys) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => {
                        let first = |&(at, key): &(usize, &&str)| !read_keys[..at].contains(key);
                        let each: Vec<_> =
                            read_keys.iter().enumerate().filter(first).map(|(_, key)| *key).collect();
                        format!("expected one of {}", each.join(", "))
                    }
                };
                self.document.report(key.span(), &name, format!("unknown field: {hint}"));
            }
        }
    }

    fn dotted(&self, key: &str) -> String {
        if self.name.is_empty() { key.into() } else { format!("{}.{key}", self.name) }
    }
}

impl<'a, T> Field<'a, T> {
    pub(crate) fn report(&self, message: impl Into<String>) {
        self.document.report(self.span.clone(), &self.name, message);
    }

    /// Returns the field if `valid`, else reports what was expected.
    pub(crate) fn filter(self, expected: &str, valid: impl Fn(&T) -> bool) -> Option<Self> {
        if valid(&self.value) {
            return Some(self);
        }
        self.report(format!("found {}, expected {expected}", self.found()));
        None
    }

    /// Converts the value, or reports the error.
    pub(crate) fn map<U>(self, convert: impl FnOnce(&T) -> Result<U, String>) -> Option<Field<'a, U>> {
        match convert(&self.value) {
            Ok(value) => Some(Field { document: self.document, name: self.name, span: self.span, value }),
            Err(problem) => {
                self.report(problem);
                None
            }
        }
    }

    /// Returns the value as written in the file, truncated if it is long.
    fn found(&self) -> String {
        let text = self.document.text.get(self.span.clone()).unwrap_or_default();
        match text.char_indices().nth(40) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.into(),
        }
    }
}

impl<'a> Field<'a, &'a DeValue<'a>> {
    fn read<T>(
        self,
        expected: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Option<Field<'a, T>> {
        let found = format!("found {}, expected {expected}", self.found());
        self.map(|value| read(value).ok_or(found))
    }

    pub(crate) fn text(self) -> Option<Field<'a, &'a str>> {
        self.text_of("a text in quotes")?.filter("a text that is not empty", |text| !text.is_empty())
    }

    /// Returns the text, or reports that `expected` was expected.
    pub(crate) fn text_of(self, expected: &str) -> Option<Field<'a, &'a str>> {
        self.read(expected, DeValue::as_str)
    }

    /// Returns a text, or a bare TOML date or time as text.
    pub(crate) fn time_text(self) -> Option<Field<'a, String>> {
        self.read("a date or an RFC 3339 time", |value| match value {
            DeValue::Datetime(time) => Some(time.to_string()),
            value => value.as_str().map(String::from),
        })
    }

    /// Returns a list of texts; a single text is a list of one.
    pub(crate) fn texts(self) -> Option<Vec<Field<'a, &'a str>>> {
        if self.value.is_str() {
            return Some(vec![self.text()?]);
        }
        let array = self.read("a list of texts", DeValue::as_array)?;
        let array = array.filter("a list that is not empty", |items| !items.is_empty())?;
        // Every item is read, so that each wrong one is reported.
        let texts: Vec<_> = array.items().map(Field::text).collect();
        texts.into_iter().collect()
    }

    /// Returns a list of finite numbers.
    pub(crate) fn numbers(self, expected: &str) -> Option<Field<'a, Vec<f64>>> {
        self.read(expected, |value| {
            value.as_array()?.iter().map(|number| number_value(number.get_ref())).collect()
        })
    }

    fn section(self) -> Option<Section<'a>> {
        let Field { document, name, span, value } = self.read("a table", DeValue::as_table)?;
        Some(Section { document, table: value, name, span, read_keys: RefCell::default() })
    }
}

impl<'a> Field<'a, &'a DeArray<'a>> {
    fn items(&self) -> impl Iterator<Item = Field<'a, &'a DeValue<'a>>> + use<'a> {
        let (document, name) = (self.document, self.name.clone());
        let item = move |(index, value): (usize, &'a Spanned<DeValue<'a>>)| {
            let name = format!("{name}[{index}]");
            Field { document, name, span: value.span(), value: value.get_ref() }
        };
        self.value.iter().enumerate().map(item)
    }
}

fn number_value(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok().filter(|x: &f64| x.is_finite()),
        DeValue::Integer(integer) => Some(integer_value(integer)? as f64),
        _ => None,
    }
}

fn integer_value(integer: &toml::de::DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}
