//! Whether a user may publish to a subject, without publishing to it.
//!
//! A server from version 2.10 on lists a user's permissions, if the user may ask for them. A
//! permitted message would reach every subscriber, so there is no other way to find out.

use serde_json::{Value, json};

use super::connection::NatsConnection;
use crate::connect::error::{RequestError, refusal};

/// Subject of the request for a user's own permissions.
const OWN_PERMISSIONS: &str = "$SYS.REQ.USER.INFO";

/// Refuses a user that is known not to be allowed to publish to these subjects.
pub(super) fn check(connection: &mut NatsConnection, subjects: &[String]) -> Result<(), RequestError> {
    // An older server does not answer, and another user may not ask.
    let Ok(answer) = connection.ask(OWN_PERMISSIONS, &json!({})) else { return Ok(()) };
    let publish = &answer["data"]["permissions"]["publish"];
    match subjects.iter().find(|subject| !may_publish(publish, subject)) {
        None => Ok(()),
        Some(subject) => {
            let words = format!(
                "the user may not publish to {subject:?}: add it to the user's permissions in the server"
            );
            Err(refusal(connection.stream.name(), &words))
        }
    }
}

fn may_publish(permissions: &Value, subject: &str) -> bool {
    let patterns = |list: &str| permissions[list].as_array().map_or(&[][..], Vec::as_slice);
    let fits = |pattern: &Value| pattern.as_str().is_some_and(|pattern| matches(pattern, subject));
    // A user without a list of permitted subjects may publish to all that are not denied.
    let allowed = patterns("allow");
    (allowed.is_empty() || allowed.iter().any(fits)) && !patterns("deny").iter().any(fits)
}

/// Whether a pattern, where `*` stands for one part and `>` for one or more last parts, fits a
/// subject.
fn matches(pattern: &str, subject: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('.'), subject.split('.'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return true,
            (Some(pattern), Some(part)) if pattern == "*" || pattern == part => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_subjects() {
        for (pattern, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            ("a", "a.b", false),
            ("*.b", "a.b", true),
        ] {
            assert_eq!(matches(pattern, subject), expected, "{pattern} {subject}");
        }
    }

    #[test]
    fn lists_permit_and_deny() {
        let may = |publish: Value| may_publish(&publish, "releases");
        assert!(may(Value::Null) && may(json!({ "allow": ["releases"] })) && may(json!({ "deny": ["a"] })));
        assert!(!may(json!({ "allow": ["a"] })) && !may(json!({ "allow": [">"], "deny": ["rel*", "*"] })));
    }
}
