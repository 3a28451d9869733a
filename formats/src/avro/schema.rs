//! Parses Avro schemas (specification 1.12): types, names and logical types. Plans how to read the
//! records of a schema: which values are copied to which columns, and which are skipped.

use std::collections::HashMap;

use serde_json::Value;
use thiserror::Error;

/// Largest number of types in a schema.
const MAX_TYPES: usize = 10_000;

/// Largest size of a fixed type in bytes.
const LARGEST_FIXED: u64 = 1 << 20;

/// Reasons why a schema can't be used.
#[derive(Debug, Error)]
pub enum SchemaError {
    /// Its text is not JSON.
    #[error("the schema is not JSON")]
    NotJson,
    /// Its type is not a record.
    #[error("the schema is not a record")]
    NotARecord,
    /// A part that every schema of its type has is absent.
    #[error("the schema lacks {0}")]
    Lacks(&'static str),
    /// A type is named and nowhere defined.
    #[error("the schema names an unknown type {0:?}")]
    UnknownType(String),
    /// Two types have one name.
    #[error("the schema defines {0:?} twice")]
    Twice(String),
    /// It would take too much memory.
    #[error("the schema has more than {MAX_TYPES} types")]
    TooManyTypes,
    /// A value of a fixed type would take too much memory.
    #[error("a fixed type is larger than {LARGEST_FIXED} bytes")]
    TooLarge,
}

/// Number of a type in its schema.
pub(super) type TypeNumber = usize;

/// A schema: its types. The root is the type of the last parsed text.
pub(super) struct Schema {
    types: Vec<AvroType>,
    pub(super) root: TypeNumber,
}

/// A type: the encoding and the meaning of its values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AvroType {
    Null,
    Boolean,
    Integer,
    Float,
    Double,
    /// Bytes or a string.
    Bytes,
    /// This number of bytes.
    Fixed(usize),
    /// Integers that are times, as multiples of this number of nanoseconds.
    Time(i64),
    /// Whole numbers of 10^-scale, big-endian, in bytes or in a fixed number of bytes.
    Decimal {
        scale: u32,
        size: Option<usize>,
    },
    Enum(Vec<String>),
    Array(TypeNumber),
    Map(TypeNumber),
    Union(Vec<TypeNumber>),
    /// Names and types of its fields.
    Record(Vec<(String, TypeNumber)>),
}

impl Schema {
    /// Parses a schema, after those that it refers to.
    pub(super) fn parse(texts: &[String]) -> Result<Self, SchemaError> {
        let mut parser = SchemaParser::default();
        let mut root = 0;
        for text in texts {
            let json: Value = serde_json::from_str(text).map_err(|_| SchemaError::NotJson)?;
            root = parser.parse(&json, "")?;
        }
        Ok(Schema { types: parser.types, root })
    }

    pub(super) fn get(&self, number: TypeNumber) -> &AvroType {
        &self.types[number]
    }
}

#[derive(Default)]
struct SchemaParser {
    types: Vec<AvroType>,
    /// Full names of types.
    named: HashMap<String, TypeNumber>,
}

impl SchemaParser {
    fn add(&mut self, new: AvroType) -> Result<TypeNumber, SchemaError> {
        if self.types.len() >= MAX_TYPES {
            return Err(SchemaError::TooManyTypes);
        }
        self.types.push(new);
        Ok(self.types.len() - 1)
    }

    /// Parses a type within a namespace. The JSON parser limits its depth.
    fn parse(&mut self, json: &Value, namespace: &str) -> Result<TypeNumber, SchemaError> {
        match json {
            Value::String(name) => self.named_type(name, namespace),
            Value::Array(branches) => {
                let branches = branches.iter().map(|branch| self.parse(branch, namespace));
                let branches = branches.collect::<Result<_, _>>()?;
                self.add(AvroType::Union(branches))
            }
            Value::Object(_) => self.object(json, namespace),
            _ => Err(SchemaError::Lacks("a type")),
        }
    }

    fn named_type(&mut self, name: &str, namespace: &str) -> Result<TypeNumber, SchemaError> {
        if let Some(primitive) = primitive(name) {
            return self.add(primitive);
        }
        let known = self.named.get(&full_name(name, namespace)).or_else(|| self.named.get(name));
        known.copied().ok_or_else(|| SchemaError::UnknownType(name.into()))
    }

    fn object(&mut self, json: &Value, namespace: &str) -> Result<TypeNumber, SchemaError> {
        let kind = &json["type"];
        let Some(kind) = kind.as_str() else { return self.parse(kind, namespace) };
        let logical = logical(json, kind);
        match kind {
            "array" => {
                let items = self.parse(&json["items"], namespace)?;
                self.add(AvroType::Array(items))
            }
            "map" => {
                let values = self.parse(&json["values"], namespace)?;
                self.add(AvroType::Map(values))
            }
            "record" | "error" => self.record(json, namespace),
            "enum" => {
                let symbols = json["symbols"].as_array().ok_or(SchemaError::Lacks("symbols of an enum"))?;
                let symbols = symbols.iter().map(|symbol| symbol.as_str().unwrap_or_default().into());
                let symbols = AvroType::Enum(symbols.collect());
                self.name(json, namespace, symbols).map(|(number, _)| number)
            }
            "fixed" => {
                let size = json["size"].as_u64().ok_or(SchemaError::Lacks("the size of a fixed type"))?;
                if size > LARGEST_FIXED {
                    return Err(SchemaError::TooLarge);
                }
                let size = size as usize;
                let fixed = match logical {
                    Some(AvroType::Decimal { scale, .. }) => AvroType::Decimal { scale, size: Some(size) },
                    _ => AvroType::Fixed(size),
                };
                self.name(json, namespace, fixed).map(|(number, _)| number)
            }
            _ => match logical {
                Some(logical) => self.add(logical),
                None => self.named_type(kind, namespace),
            },
        }
    }

    fn record(&mut self, json: &Value, namespace: &str) -> Result<TypeNumber, SchemaError> {
        let fields = json["fields"].as_array().ok_or(SchemaError::Lacks("fields of a record"))?;
        // Fields may refer to the record.
        let (number, namespace) = self.name(json, namespace, AvroType::Record(Vec::new()))?;
        let mut parsed = Vec::new();
        for field in fields {
            let name = field["name"].as_str().ok_or(SchemaError::Lacks("the name of a field"))?;
            parsed.push((name.to_owned(), self.parse(&field["type"], &namespace)?));
        }
        self.types[number] = AvroType::Record(parsed);
        Ok(number)
    }

    /// Adds a type with a name; returns its namespace too.
    fn name(
        &mut self,
        json: &Value,
        namespace: &str,
        new: AvroType,
    ) -> Result<(TypeNumber, String), SchemaError> {
        let name = json["name"].as_str().ok_or(SchemaError::Lacks("the name of a type"))?;
        let full = full_name(name, json["namespace"].as_str().unwrap_or(namespace));
        let number = self.add(new)?;
        if self.named.insert(full.clone(), number).is_some() {
            return Err(SchemaError::Twice(full));
        }
        let namespace = full.rsplit_once('.').map_or("", |(namespace, _)| namespace);
        Ok((number, namespace.into()))
    }
}

fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() { name.into() } else { format!("{namespace}.{name}") }
}

fn primitive(name: &str) -> Option<AvroType> {
    Some(match name {
        "null" => AvroType::Null,
        "boolean" => AvroType::Boolean,
        "int" | "long" => AvroType::Integer,
        "float" => AvroType::Float,
        "double" => AvroType::Double,
        "bytes" | "string" => AvroType::Bytes,
        _ => return None,
    })
}

/// Returns the type that a logical type makes of another one. Unknown ones are ignored, as the
/// specification says.
fn logical(json: &Value, kind: &str) -> Option<AvroType> {
    let scale = || json["scale"].as_u64().unwrap_or(0).min(u64::from(u32::MAX)) as u32;
    Some(match (json["logicalType"].as_str()?, kind) {
        ("date", "int") => AvroType::Time(86_400_000_000_000),
        ("timestamp-millis" | "local-timestamp-millis", "long") => AvroType::Time(1_000_000),
        ("timestamp-micros" | "local-timestamp-micros", "long") => AvroType::Time(1000),
        ("timestamp-nanos" | "local-timestamp-nanos", "long") => AvroType::Time(1),
        ("decimal", "bytes" | "fixed") => AvroType::Decimal { scale: scale(), size: None },
        _ => return None,
    })
}

/// How to read a record.
pub(super) struct RecordPlan {
    pub(super) schema: Schema,
    /// The fields of the root, in the order in which they are written.
    pub(super) fields: Vec<FieldPlan>,
}

/// Treatment of a field.
#[derive(Debug, PartialEq)]
pub(super) enum FieldPlan {
    /// It is skipped.
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
