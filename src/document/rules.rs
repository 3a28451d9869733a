//! Rules on several fields: which go together, which exclude each other, and which values of one
//! need another. The parser and the JSON schema read the same rules.

use std::ops::Range;

use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

/// The address of standard input.
const STANDARD_INPUT: &str = "-";

/// A statement about a field. Its path is relative to the section of the rule, such as
/// `privacy.unit`; `columns[].bounds` is a field of any of several tables.
#[derive(Clone, Copy)]
pub(crate) enum Fact {
    Has(&'static str),
    Lacks(&'static str),
    /// The field is one of these words.
    Is(&'static str, WordSet),
    /// The field is absent, or another word.
    IsNot(&'static str, WordSet),
    /// The field is a list of one item.
    IsSingle(&'static str),
    /// The field is absent, or not a list of one item.
    IsNotSingle(&'static str),
    /// The field is this flag.
    IsFlag(&'static str, bool),
    /// The field is absent, or not this flag.
    IsNotFlag(&'static str, bool),
    /// The field is an address of one of these schemes, or a list of such addresses. Standard
    /// input is the scheme `-`.
    LeadsTo(&'static str, WordSet),
    /// The field is absent, or an address of another scheme.
    LeadsElsewhere(&'static str, WordSet),
}

/// Words that a field may have.
#[derive(Clone, Copy)]
pub(crate) enum WordSet {
    These(&'static [&'static str]),
    /// The words of a table.
    Of(fn() -> Vec<&'static str>),
}

/// A rule of a section.
pub(crate) struct Rule {
    /// It applies where all of these hold.
    pub(crate) when: &'static [Fact],
    /// All of these must hold then.
    pub(crate) then: &'static [Fact],
    /// The mistake and how to correct it; empty for a missing field.
    pub(crate) message: &'static str,
}

/// A field that breaks a rule.
pub(crate) struct Breach {
    /// Dotted name of the field, or of the section that lacks it; empty for that of the rule.
    pub(crate) name: String,
    /// Its position in the text; `None` for the section of the rule.
    pub(crate) span: Option<Range<usize>>,
    /// The path of the field.
    pub(crate) path: &'static str,
}

impl WordSet {
    pub(crate) fn list(self) -> Vec<&'static str> {
        match self {
            WordSet::These(words) => words.to_vec(),
            WordSet::Of(words) => words(),
        }
    }
}

impl Rule {
    /// Returns where the rule is broken in a table.
    pub(crate) fn breaches(&self, table: &DeTable<'_>) -> Vec<Breach> {
        if !self.when.iter().all(|fact| fact.holds(table)) {
            return Vec::new();
        }
        self.then.iter().flat_map(|fact| fact.breaches(table)).collect()
    }

    /// Returns its JSON schema.
    pub(crate) fn schema(&self) -> Value {
        let all = |facts: &[Fact]| match facts {
            [one] => one.schema(),
            facts => json!({ "allOf": facts.iter().map(|fact| fact.schema()).collect::<Vec<_>>() }),
        };
        match self.when {
            [] => all(self.then),
            when => json!({ "if": all(when), "then": all(self.then) }),
        }
    }
}

impl Fact {
    fn path(self) -> &'static str {
        match self {
            Fact::Has(path) | Fact::Lacks(path) | Fact::IsSingle(path) | Fact::IsNotSingle(path) => path,
            Fact::Is(path, _) | Fact::IsNot(path, _) => path,
            Fact::IsFlag(path, _) | Fact::IsNotFlag(path, _) => path,
            Fact::LeadsTo(path, _) | Fact::LeadsElsewhere(path, _) => path,
        }
    }

    fn holds(self, table: &DeTable<'_>) -> bool {
        let found = found(table, self.path());
        match self {
            Fact::Has(_) => found.iter().any(|found| found.value.is_some()),
            Fact::Lacks(_) => found.iter().all(|found| found.value.is_none()),
            Fact::Is(_, words) => found.iter().any(|found| found.is_word(words)),
            Fact::IsNot(_, words) => !found.iter().any(|found| found.is_word(words)),
            Fact::IsSingle(_) => found.iter().any(Found::is_single),
            Fact::IsNotSingle(_) => !found.iter().any(Found::is_single),
            Fact::IsFlag(_, flag) => found.iter().any(|found| found.is_flag(flag)),
            Fact::IsNotFlag(_, flag) => !found.iter().any(|found| found.is_flag(flag)),
            Fact::LeadsTo(_, schemes) => found.iter().any(|found| found.leads_to(schemes)),
            Fact::LeadsElsewhere(_, schemes) => !found.iter().any(|found| found.leads_to(schemes)),
        }
    }

    /// Returns where it does not hold.
    fn breaches(self, table: &DeTable<'_>) -> Vec<Breach> {
        if self.holds(table) {
            return Vec::new();
        }
        let breaks = |found: &Found<'_>| match self {
            Fact::Has(_) | Fact::Is(..) | Fact::IsSingle(_) | Fact::IsFlag(..) | Fact::LeadsTo(..) => true,
            Fact::IsNotSingle(_) => found.is_single(),
            Fact::Lacks(_) => found.value.is_some(),
            Fact::IsNot(_, words) => found.is_word(words),
            Fact::IsNotFlag(_, flag) => found.is_flag(flag),
            Fact::LeadsElsewhere(_, schemes) => found.leads_to(schemes),
        };
        let found = found(table, self.path()).into_iter().filter(breaks);
        found.map(|Found { name, span, .. }| Breach { name, span, path: self.path() }).collect()
    }

    fn schema(self) -> Value {
        let path = self.path();
        match self {
            Fact::Has(_) => schema_at(path, None),
            Fact::Lacks(_) => json!({ "not": schema_at(path, None) }),
            Fact::Is(_, words) => schema_at(path, Some(word(words))),
            Fact::IsNot(_, words) => json!({ "not": schema_at(path, Some(word(words))) }),
            Fact::IsSingle(_) => schema_at(path, Some(single())),
            Fact::IsNotSingle(_) => json!({ "not": schema_at(path, Some(single())) }),
            Fact::IsFlag(_, flag) => schema_at(path, Some(json!({ "enum": [flag] }))),
            Fact::IsNotFlag(_, flag) => json!({ "not": schema_at(path, Some(json!({ "enum": [flag] }))) }),
            Fact::LeadsTo(_, schemes) => schema_at(path, Some(address(&schemes.list()))),
            Fact::LeadsElsewhere(_, schemes) => {
                json!({ "not": schema_at(path, Some(address(&schemes.list()))) })
            }
        }
    }
}

fn word(words: WordSet) -> Value {
    json!({ "enum": words.list() })
}

fn single() -> Value {
    json!({ "type": "array", "minItems": 1, "maxItems": 1 })
}

/// The schema of an address of one of these schemes, or of a list of such addresses.
pub(crate) fn address(schemes: &[&str]) -> Value {
    let start = |scheme: &&str| match *scheme {
        STANDARD_INPUT => format!("{STANDARD_INPUT}$"),
        scheme => format!("{scheme}://"),
    };
    let starts: Vec<_> = schemes.iter().map(start).collect();
    let one = json!({ "pattern": format!("^({})", starts.join("|")) });
    json!({ "pattern": one["pattern"], "items": one })
}

/// The schema of tables with a field at this path, whose value has this schema.
fn schema_at(path: &str, value: Option<Value>) -> Value {
    let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
    let (key, is_list) = key.strip_suffix("[]").map_or((key, false), |key| (key, true));
    let inner = match rest {
        Some(rest) => Some(schema_at(rest, value)),
        None => value,
    };
    let inner = inner.map(|inner| if is_list { json!({ "contains": inner }) } else { inner });
    match inner {
        None => json!({ "required": [key] }),
        Some(inner) => json!({ "required": [key], "properties": { key: inner } }),
    }
}

/// A field at a path, or the section that lacks it.
struct Found<'a> {
    name: String,
    span: Option<Range<usize>>,
    value: Option<&'a DeValue<'a>>,
}

impl Found<'_> {
    fn is_single(&self) -> bool {
        self.value.and_then(DeValue::as_array).is_some_and(|items| items.len() == 1)
    }

    fn is_flag(&self, flag: bool) -> bool {
        self.value.and_then(DeValue::as_bool) == Some(flag)
    }

    fn leads_to(&self, schemes: WordSet) -> bool {
        let leads =
            |value: &DeValue<'_>| value.as_str().is_some_and(|text| has_scheme(text, &schemes.list()));
        self.value.is_some_and(|value| match value.as_array() {
            Some(items) => items.iter().all(|item| leads(item.get_ref())),
            None => leads(value),
        })
    }

    fn is_word(&self, words: WordSet) -> bool {
        self.value.and_then(DeValue::as_str).is_some_and(|word| words.list().contains(&word))
    }
}

/// Whether an address has one of these schemes.
fn has_scheme(address: &str, schemes: &[&str]) -> bool {
    schemes.iter().any(|scheme| match *scheme {
        STANDARD_INPUT => address == STANDARD_INPUT,
        scheme => address.strip_prefix(scheme).is_some_and(|rest| rest.starts_with("://")),
    })
}

/// Returns the fields at a path: several if it leads through several tables.
fn found<'a>(table: &'a DeTable<'a>, path: &str) -> Vec<Found<'a>> {
    let mut tables = vec![(String::new(), None, table)];
    let mut keys = path.split('.').peekable();
    while let Some(key) = keys.next() {
        let (key, is_list) = key.strip_suffix("[]").map_or((key, false), |key| (key, true));
        let is_last = keys.peek().is_none();
        let mut inner = Vec::new();
        let mut ends = Vec::new();
        for (name, span, table) in tables {
            let dotted = if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
            let Some(value) = table.get(key) else {
                ends.push(Found { name, span, value: None });
                continue;
            };
            if is_last {
                ends.push(Found { name: dotted, span: Some(value.span()), value: Some(value.get_ref()) });
            } else if is_list {
                let items = value.get_ref().as_array().into_iter().flat_map(|items| items.iter());
                inner.extend(items.enumerate().filter_map(|(index, item)| {
                    Some((format!("{dotted}[{index}]"), Some(item.span()), item.get_ref().as_table()?))
                }));
            } else if let Some(table) = value.get_ref().as_table() {
                inner.push((dotted, Some(value.span()), table));
            } else {
                ends.push(Found { name: dotted, span: Some(value.span()), value: None });
            }
        }
        if is_last || inner.is_empty() {
            return ends;
        }
        // A list has the field if one of its tables does.
        tables = inner;
    }
    Vec::new()
}
