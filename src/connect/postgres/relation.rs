//! Names of tables and columns, quoted for SQL.

use postgres_protocol::escape::escape_identifier;

/// Maximum number of bytes of a name. The server cuts longer ones, so two names may become one.
const NAME_LIMIT: usize = 63;

/// A table or view, by its name and perhaps its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableName {
    pub(super) schema: Option<String>,
    pub(super) table: String,
}

impl TableName {
    /// Parses `table` or `schema.table`. Names are case-sensitive.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, text),
        };
        let is_valid =
            [schema, Some(table)].into_iter().flatten().all(|name| is_name(name) && !name.contains('.'));
        is_valid.then(|| TableName { schema: schema.map(String::from), table: table.into() })
    }

    /// Its name for messages.
    pub(super) fn name(&self) -> String {
        let schema = self.schema.iter().map(|schema| format!("{schema}."));
        schema.chain([self.table.clone()]).collect()
    }

    /// Its name in SQL.
    pub(super) fn quoted(&self) -> String {
        let schema = self.schema.iter().map(|schema| escape_identifier(schema) + ".");
        schema.chain([escape_identifier(&self.table)]).collect()
    }
}

/// Whether this can be the name of a table or a column.
pub(super) fn is_name(name: &str) -> bool {
    (1..=NAME_LIMIT).contains(&name.len()) && !name.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact_and_quoted() {
        let quoted = |text: &str| TableName::parse(text).map(|name| name.quoted());
        assert_eq!(quoted("rows").as_deref(), Some("\"rows\""));
        assert_eq!(quoted("Public.my rows").as_deref(), Some("\"Public\".\"my rows\""));
        assert_eq!(quoted("a\"; DROP TABLE b; --").as_deref(), Some("\"a\"\"; DROP TABLE b; --\""));
        let long = "x".repeat(64);
        assert!(
            ["", ".", "a.", ".a", "a.b.c", "a\0", long.as_str()].iter().all(|text| quoted(text).is_none())
        );
    }
}
