//! How the records of a schema are read: which values are copied to which columns, and which are
//! skipped.

use super::schema::{AvroType, Schema, SchemaError, TypeNumber};

/// How to read a record.
pub(super) struct RecordPlan {
    pub(super) schema: Schema,
    /// The fields of the root, in the order in which they are written.
    pub(super) fields: Vec<FieldPlan>,
}

/// Treatment of a field.
#[derive(Debug, PartialEq)]
pub(super) enum FieldPlan {
    /// Nothing.
    Skip(TypeNumber),
    /// Its value goes to a column.
    Copy(TypeNumber, usize),
    /// It is a record with wanted fields.
    Enter(Vec<FieldPlan>),
    /// It is one of several types, and some are records with wanted fields.
    Choose(Vec<FieldPlan>),
}

impl RecordPlan {
    /// Parses a schema, after those that it refers to.
    pub(super) fn parse(texts: &[String], wanted: &[String]) -> Result<Self, SchemaError> {
        let schema = Schema::parse(texts)?;
        let AvroType::Record(fields) = schema.get(schema.root) else { return Err(SchemaError::NotARecord) };
        let fields = plan(&schema, fields, "", wanted);
        Ok(RecordPlan { schema, fields })
    }
}

/// Plans the fields of a record, whose names begin with `prefix`. The depth is that of the wanted
/// names, also if a record contains itself.
fn plan(schema: &Schema, fields: &[(String, TypeNumber)], prefix: &str, wanted: &[String]) -> Vec<FieldPlan> {
    let field = |(name, number): &(String, TypeNumber)| {
        let name = format!("{prefix}{name}");
        if let Some(slot) = wanted.iter().position(|wanted| *wanted == name) {
            return FieldPlan::Copy(*number, slot);
        }
        let members = format!("{name}.");
        if !wanted.iter().any(|wanted| wanted.starts_with(&members)) {
            return FieldPlan::Skip(*number);
        }
        enter(schema, *number, &members, wanted)
    };
    fields.iter().map(field).collect()
}

/// Plans a field with wanted members.
fn enter(schema: &Schema, number: TypeNumber, members: &str, wanted: &[String]) -> FieldPlan {
    match schema.get(number) {
        AvroType::Record(fields) => FieldPlan::Enter(plan(schema, fields, members, wanted)),
        AvroType::Union(branches) => {
            let branch = |&number: &TypeNumber| match schema.get(number) {
                AvroType::Record(fields) => FieldPlan::Enter(plan(schema, fields, members, wanted)),
                _ => FieldPlan::Skip(number),
            };
            FieldPlan::Choose(branches.iter().map(branch).collect())
        }
        _ => FieldPlan::Skip(number),
    }
}
