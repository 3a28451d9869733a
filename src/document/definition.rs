//! Definitions of sections and fields. One table is used to read, explain and check a document.

use std::fmt::Write;

use super::rules::Rule;
use crate::spelling::did_you_mean;

/// A table of the document, such as `[epochs]`.
pub(crate) struct SectionDefinition {
    /// As in a document: `[epochs]` or `[[columns]]`; empty for the fields at its top.
    pub(crate) heading: &'static str,
    /// Its purpose, in one sentence.
    pub(crate) about: &'static str,
    /// Fields that every such section may have.
    pub(crate) fields: &'static [FieldDefinition],
    /// Fields that only some of these sections have.
    pub(crate) groups: fn() -> Vec<FieldGroup>,
    /// Alternatives, of which exactly one must be present: a field, or a field with a value
    /// (`field = value`, as TOML). Empty if there are none.
    pub(crate) one_of: fn() -> Vec<String>,
    /// Rules on several of its fields, and on those of sections inside it.
    pub(crate) rules: &'static [Rule],
}

/// Fields that belong to one kind of section.
pub(crate) struct FieldGroup {
    /// The kind, after "is for".
    pub(crate) of: String,
    pub(crate) only: GroupTest,
    pub(crate) fields: &'static [FieldDefinition],
}

/// Condition for a section to have the fields of a group.
pub(crate) enum GroupTest {
    /// Always.
    Any,
    /// A field has one of these words, or is absent and one of them is its default.
    Word { key: &'static str, words: Vec<String>, is_default: bool },
    /// `path` is an address of one of these schemes.
    Scheme(Vec<&'static str>),
}

#[derive(Clone, Copy)]
pub(crate) struct FieldDefinition {
    pub(crate) key: &'static str,
    pub(crate) value: FieldType,
    pub(crate) presence: Presence,
    /// A valid value, as TOML; empty for sections.
    pub(crate) example: &'static str,
    /// Its meaning, in one sentence.
    pub(crate) about: &'static str,
    /// Its cost in privacy; empty if it has none.
    pub(crate) privacy: &'static str,
}

/// Whether a field must be present, and the behaviour if it is absent.
#[derive(Clone, Copy)]
pub(crate) enum Presence {
    Required,
    /// The default, as TOML.
    Default(&'static str),
    /// Behaviour without it, for people.
    Optional(&'static str),
}

/// Type and range of a value.
#[derive(Clone, Copy)]
pub(crate) enum FieldType {
    /// Any text that is not empty.
    Text,
    /// A text of a form that the first text describes, after "expected". All such texts match the
    /// pattern, which is the second one.
    Pattern(&'static str, &'static str),
    /// A text in one of these forms.
    Forms(fn() -> Vec<ValueForm>),
    /// One of these words.
    Words(fn() -> Vec<ValueForm>),
    Number(Range),
    /// A whole number.
    Count {
        least: u64,
        most: u64,
    },
    Flag,
    /// A text, or a list of texts.
    Texts,
    /// A list of numbers above 0, one for each column.
    Numbers,
    /// A list of numbers above 0 and below 1.
    Shares,
    /// Ascending numbers, at least three.
    Edges,
    /// A table of a lower and an upper bound for each key.
    BoundsByKey,
    /// One of these types, which the error message describes.
    Either(&'static [FieldType]),
    /// A date or time.
    Time,
    /// A duration of at least this number of microseconds.
    Duration {
        least: i64,
    },
    Section(&'static SectionDefinition),
    Sections(&'static SectionDefinition),
}

/// A form of a value of a field, or one of its words.
pub(crate) struct ValueForm {
    pub(crate) usage: String,
    /// Its meaning.
    pub(crate) about: &'static str,
}

/// A word and its value.
pub(crate) struct Word<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) value: T,
    about: &'static str,
}

/// A range of finite numbers.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    /// The least number, and whether it is excluded.
    pub(crate) from: Option<(f64, bool)>,
    /// All numbers are below this one.
    pub(crate) below: Option<f64>,
}

impl Range {
    pub(crate) const FINITE: Range = Range { from: None, below: None };
    pub(crate) const POSITIVE: Range = Range { from: Some((0.0, true)), below: None };
    /// Above 0 and below 1.
    pub(crate) const SHARE: Range = Range { from: Some((0.0, true)), below: Some(1.0) };

    pub(crate) fn contains(self, number: f64) -> bool {
        let above = self.from.is_none_or(|(least, open)| number > least || (!open && number == least));
        number.is_finite() && above && self.below.is_none_or(|below| number < below)
    }

    fn expected(self) -> String {
        let from = self.from.map(
            |(least, open)| {
                if open { format!("above {least}") } else { format!("at least {least}") }
            },
        );
        let below = self.below.map(|below| format!("below {below}"));
        match (from, below) {
            (None, None) => "a finite number".into(),
            (Some(part), None) | (None, Some(part)) => format!("a number {part}"),
            (Some(from), Some(below)) => format!("a number {from} and {below}"),
        }
    }
}

/// Makes a word of a list.
pub(crate) const fn word<T: Copy>(name: &'static str, value: T, about: &'static str) -> Word<T> {
    Word { name, value, about }
}

/// Returns the words of a list with their meanings.
pub(crate) fn forms<T>(words: &[Word<T>]) -> Vec<ValueForm> {
    words.iter().map(|word| ValueForm { usage: word.name.into(), about: word.about }).collect()
}

/// The form of a duration, for messages.
pub(crate) const DURATION: &str =
    "a duration such as \"1d\", \"6h 30m\" or \"15min\" (months and years vary)";

impl FieldType {
    /// A whole number of at least `least`.
    pub(crate) const fn from(least: u64) -> FieldType {
        FieldType::Count { least, most: u64::MAX }
    }

    /// Suggests the word that a text may mean, at the end of a message. Empty if there is none.
    pub(crate) fn meant(self, found: &str) -> String {
        let (Self::Forms(forms) | Self::Words(forms)) = self else { return String::new() };
        let forms = forms();
        let words: Vec<&str> = forms.iter().map(|form| form.usage.trim_matches('"')).collect();
        did_you_mean(found, &words)
    }

    /// Describes valid values, after "expected".
    pub(crate) fn expected(self) -> String {
        match self {
            Self::Text => "a text in quotes".into(),
            Self::Pattern(expected, _) => expected.into(),
            Self::Forms(forms) => listed(forms().iter().map(|form| form.usage.clone())),
            Self::Words(words) => listed(words().iter().map(|form| format!("{:?}", form.usage))),
            Self::Number(range) => range.expected(),
            Self::Count { least, most: u64::MAX } => format!("a whole number from {least}"),
            Self::Count { least, most } => format!("a whole number from {least} to {most}"),
            Self::Flag => "true or false".into(),
            Self::Texts => "a list of texts".into(),
            Self::Numbers => "a list of numbers above 0, one for each column".into(),
            Self::Shares => "a list of numbers above 0 and below 1".into(),
            Self::Edges => "at least three ascending numbers".into(),
            Self::BoundsByKey => "a table of a lower and an upper bound for each key".into(),
            Self::Either(types) => listed(types.iter().map(|value| value.expected())),
            Self::Time => "a date or an RFC 3339 time".into(),
            Self::Duration { .. } => DURATION.into(),
            Self::Section(_) => "a table".into(),
            Self::Sections(_) => "tables [[…]]".into(),
        }
    }

    /// The section or sections that the value holds.
    pub(crate) fn section(self) -> Option<&'static SectionDefinition> {
        match self {
            Self::Section(section) | Self::Sections(section) => Some(section),
            _ => None,
        }
    }
}

/// `a or b or c`.
fn listed(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" or ")
}

impl FieldDefinition {
    const fn new(
        key: &'static str,
        value: FieldType,
        presence: Presence,
        example: &'static str,
        about: &'static str,
    ) -> Self {
        Self { key, value, presence, example, about, privacy: "" }
    }

    /// A field that must be present.
    pub(crate) const fn required(
        key: &'static str,
        value: FieldType,
        example: &'static str,
        about: &'static str,
    ) -> Self {
        Self::new(key, value, Presence::Required, example, about)
    }

    /// A field that may be absent; `without` describes the behaviour then.
    pub(crate) const fn optional(
        key: &'static str,
        value: FieldType,
        without: &'static str,
        example: &'static str,
        about: &'static str,
    ) -> Self {
        Self::new(key, value, Presence::Optional(without), example, about)
    }

    /// A field with a default.
    pub(crate) const fn with_default(
        key: &'static str,
        value: FieldType,
        default: &'static str,
        example: &'static str,
        about: &'static str,
    ) -> Self {
        Self::new(key, value, Presence::Default(default), example, about)
    }

    /// States the privacy cost of the field.
    pub(crate) const fn costs(self, privacy: &'static str) -> Self {
        Self { privacy, ..self }
    }

    /// Returns the line that a user should add, for messages.
    pub(crate) fn remedy(&self) -> String {
        match self.value.section() {
            None => {
                let about = self.about.trim_end_matches('.');
                let mut letters = about.chars();
                let first = letters.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
                format!("{} = {} ({first}{})", self.key, self.example, letters.as_str())
            }
            Some(section) => {
                let mut text = format!("a section {}", section.heading);
                let mut separator = " with ";
                for field in
                    section.fields.iter().filter(|field| matches!(field.presence, Presence::Required))
                {
                    let _ = write!(text, "{separator}{}", field.key);
                    separator = ", ";
                }
                text
            }
        }
    }
}

impl SectionDefinition {
    /// A section without fields, groups and alternatives.
    pub(crate) const EMPTY: SectionDefinition = SectionDefinition {
        heading: "",
        about: "",
        fields: &[],
        groups: Vec::new,
        one_of: Vec::new,
        rules: &[],
    };

    /// Returns the headings of the sections inside this one that have a field of this name.
    pub(crate) fn homes(&self, key: &str) -> Vec<&'static str> {
        let sections = self.fields.iter().filter_map(|field| field.value.section());
        sections
            .flat_map(|section| {
                let own = section.field(key).map(|_| section.heading);
                own.into_iter().chain(section.homes(key)).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the field `key`.
    pub(crate) fn field(&self, key: &str) -> Option<&'static FieldDefinition> {
        let own = self.fields.iter().find(|field| field.key == key);
        own.or_else(|| {
            let groups = (self.groups)();
            groups.iter().flat_map(|group| group.fields).find(|field| field.key == key)
        })
    }

    /// Returns the names of all fields, each once.
    pub(crate) fn keys(&self) -> Vec<&'static str> {
        let mut keys: Vec<&'static str> = Vec::new();
        let groups = (self.groups)();
        for field in self.fields.iter().chain(groups.iter().flat_map(|group| group.fields)) {
            if !keys.contains(&field.key) {
                keys.push(field.key);
            }
        }
        keys
    }

    /// Returns the kinds of section that have the field `key`, such as `redis:// and kafka://`;
    /// `None` if all have it.
    pub(crate) fn kinds_with(&self, key: &str) -> Option<String> {
        let has = |fields: &[FieldDefinition]| fields.iter().any(|field| field.key == key);
        if has(self.fields) {
            return None;
        }
        let kinds: Vec<String> =
            (self.groups)().into_iter().filter(|group| has(group.fields)).map(|group| group.of).collect();
        let (last, others) = kinds.split_last()?;
        Some(if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) })
    }
}
