//! Records encoded by hand and by another library, schemas of every kind, and bytes of every kind.

use super::*;
use proptest::prelude::*;

/// A schema with every kind of type, in a namespace, with a record that contains itself.
const SCHEMA: &str = r#"{"type": "record", "name": "Flight", "namespace": "air", "fields": [
    {"name": "skipped", "type": {"type": "array", "items": ["null", "string"]}},
    {"name": "delay", "type": ["null", "double"], "default": null},
    {"name": "seats", "type": "int"},
    {"name": "carrier", "type": {"type": "enum", "name": "Carrier", "symbols": ["AA", "B6"]}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "next", "type": ["null", "Flight"]},
    {"name": "from", "type": {"type": "record", "name": "Place", "fields": [
        {"name": "code", "type": "string"},
        {"name": "map", "type": {"type": "map", "values": {"type": "fixed", "name": "F", "size": 2}}}]}},
    {"name": "to", "type": ["null", "Place"]},
    {"name": "late", "type": "boolean"},
    {"name": "ratio", "type": "float"}]}"#;

const WANTED: [&str; 10] =
    ["delay", "seats", "carrier", "at", "price", "from.code", "to.code", "late", "ratio", "absent"];

fn records(texts: &[&str], wanted: &[&str]) -> (AvroRecords, Vec<String>, Result<(), SchemaError>) {
    let wanted: Vec<String> = wanted.iter().map(|&name| name.into()).collect();
    let texts: Vec<String> = texts.iter().map(|&text| text.into()).collect();
    let mut records = AvroRecords::default();
    let learnt = records.learn(7, &texts, &wanted);
    (records, wanted, learnt)
}

fn message(content: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 0, 7], content].concat()
}

/// A record of [`SCHEMA`], encoded by hand.
fn flight() -> Vec<u8> {
    let parts: [&[u8]; 11] = [
        &[3, 8, 0, 2, 2, b'x', 2, 0, 0], // a block of two values in four bytes, then one of one
        &[2, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f], // 1.5
        &[0xac, 0x02],                   // 150
        &[2],
        &[0x80, 0x82, 0xd8, 0xc7, 0xfe, 0x4e], // 2013-01-01T05:00:00Z
        &[4, 0xff, 0x38],                      // -200 hundredths
        &[0],
        &[6, b'J', b'F', b'K', 2, 2, b'k', 1, 2, 0],
        &[0],
        &[1],
        &[0, 0, 0, 0x3f],
    ];
    parts.concat()
}

#[test]
fn every_type_is_read() {
    let (records, wanted, learnt) = records(&[SCHEMA], &WANTED);
    learnt.unwrap();
    let mut row = Row::default();
    records.read(&message(&flight()), &wanted, &mut row);
    assert_eq!(row.defect, None);
    assert_eq!(row.number(0), Ok(1.5));
    assert_eq!((row.number(1), row.text(1)), (Ok(150.0), Ok(&b"150"[..])));
    assert_eq!(row.text(2), Ok(&b"B6"[..]));
    assert_eq!(row.time(3, &crate::row::TimeForm::UTC), Ok(1_357_016_400_000_000));
    assert_eq!(row.number(4), Ok(-2.0));
    assert_eq!(row.text(5), Ok(&b"JFK"[..]));
    assert_eq!(row.text(6), Err(Defect::Missing), "the structure is null");
    assert_eq!((row.number(7), row.number(8)), (Ok(1.0), Ok(0.5)));
    assert_eq!(row.text(9), Err(Defect::Missing), "the schema lacks it");
}

#[test]
fn other_bytes_are_refused() {
    let (records, wanted, _) = records(&[SCHEMA], &WANTED);
    let mut row = Row::default();
    let mut check = |bytes: &[u8]| {
        records.read(bytes, &wanted, &mut row);
        assert_eq!(row.defect, Some(Defect::NotARecord), "{bytes:?}");
    };
    let whole = message(&flight());
    (0..whole.len()).for_each(|end| check(&whole[..end]));
    check(&[&whole[..], &[0]].concat());
    check(&[&[0, 0, 0, 0, 8], &flight()[..]].concat());
    check(&[&[1, 0, 0, 0, 7], &flight()[..]].concat());
    check(&message(&[0xff; 12]));
}

#[test]
fn bytes_cannot_demand_much_work() {
    let nulls = r#"{"type": "record", "name": "R", "fields": [{"name": "n", "type": {"type": "array", "items": "null"}}]}"#;
    let chain = r#"{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "R"]}]}"#;
    let endless = r#"{"type": "record", "name": "R", "fields": [{"name": "a", "type": "R"}, {"name": "n", "type": "R"}]}"#;
    let mut row = Row::default();
    let long = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    for (schema, content) in [(nulls, &long[..]), (chain, &[2; 1 << 20]), (endless, &[])] {
        let (records, wanted, learnt) = records(&[schema], &["n.x", "n"]);
        learnt.unwrap();
        records.read(&message(content), &wanted, &mut row);
        assert_eq!(row.defect, Some(Defect::NotARecord), "{schema}");
    }
}

#[test]
fn schemas_refer_to_others() {
    let place = r#"{"type": "record", "name": "Place", "namespace": "air", "fields": [{"name": "x", "type": "int"}]}"#;
    let flight = r#"{"type": "record", "name": "Flight", "fields": [{"name": "from", "type": "air.Place"}]}"#;
    let (records, wanted, learnt) = records(&[place, flight], &["from.x"]);
    learnt.unwrap();
    let mut row = Row::default();
    records.read(&message(&[5]), &wanted, &mut row);
    assert_eq!(row.number(0), Ok(-3.0));
}

#[test]
fn wrong_schemas_are_refused() {
    for (schema, part) in [
        ("{", "not JSON"),
        ("\"int\"", "not a record"),
        ("7", "lacks a type"),
        (r#"{"type": "record", "name": "R"}"#, "lacks fields"),
        (r#"{"type": "record", "fields": []}"#, "lacks the name of a type"),
        (r#"{"type": "record", "name": "R", "fields": [{"name": "x", "type": "Q"}]}"#, "unknown type \"Q\""),
        (r#"{"type": "record", "name": "R", "fields": [{"type": "int"}]}"#, "lacks the name of a field"),
        (
            r#"{"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "fixed", "name": "R", "size": 1}}]}"#,
            "\"R\" twice",
        ),
        (
            r#"{"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "fixed", "name": "F", "size": 9999999}}]}"#,
            "larger than",
        ),
    ] {
        let (records, wanted, learnt) = records(&[schema], &["x"]);
        let problem = learnt.unwrap_err().to_string();
        assert!(problem.contains(part), "{schema}: {problem}");
        let mut row = Row::default();
        records.read(&message(&[0]), &wanted, &mut row);
        assert_eq!(row.defect, Some(Defect::NotARecord));
    }
}

proptest! {
    /// Bytes that start like a record reach more of the parser than random bytes.
    #[test]
    fn no_bytes_panic(cut in 0..45_usize, more in prop::collection::vec(any::<u8>(), 0..64)) {
        let (records, wanted, _) = records(&[SCHEMA], &WANTED);
        let mut row = Row::default();
        let whole = flight();
        records.read(&message(&[&whole[..cut.min(whole.len())], &more].concat()), &wanted, &mut row);
        records.read(&more, &wanted, &mut row);
        prop_assert_eq!(row.fields.len(), wanted.len());
    }

    /// Tests random and damaged schemas.
    #[test]
    fn no_schema_panics(text in "[{}\\[\\]\":,a-z0-9]{0,60}", at in 0..SCHEMA.len(), other in "[ -~]") {
        let mut changed = SCHEMA.to_owned();
        changed.replace_range(at..=at, &other);
        for text in [text, changed] {
            let (records, wanted, _) = records(&[&text], &WANTED);
            let mut row = Row::default();
            records.read(&message(&flight()), &wanted, &mut row);
        }
    }
}

/// Records that another library has encoded, and their values.
#[test]
fn records_of_fastavro_are_read() {
    let fixture: serde_json::Value = serde_json::from_str(include_str!("fastavro.json")).unwrap();
    let values = fixture["records"][0]["values"].as_object().unwrap();
    let wanted: Vec<&str> = values.keys().map(String::as_str).collect();
    let (records, wanted, learnt) = records(&[&fixture["schema"].to_string()], &wanted);
    learnt.unwrap();
    let mut row = Row::default();
    for record in fixture["records"].as_array().unwrap() {
        let hex = record["bytes"].as_str().unwrap();
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        records.read(&message(&bytes.collect::<Vec<_>>()), &wanted, &mut row);
        assert_eq!(row.defect, None, "{record}");
        for (slot, name) in wanted.iter().enumerate() {
            match &record["values"][name] {
                serde_json::Value::Null => assert_eq!(row.text(slot), Err(Defect::Missing), "{name}"),
                serde_json::Value::String(text) => assert_eq!(row.text(slot), Ok(text.as_bytes()), "{name}"),
                time if ["arrival", "seen", "born"].contains(&name.as_str()) => {
                    let found = row.time(slot, &crate::row::TimeForm::UTC);
                    assert_eq!(found.ok(), time.as_i64(), "{name}");
                }
                number => assert_eq!(row.number(slot).ok(), number.as_f64(), "{name}"),
            }
        }
    }
}
