//! A schema registry: a server that stores the schemas of messages under numbers, by the HTTP
//! interface of Confluent's registry, which others offer too.
//!
//! Answers are bounded in time and length, and so is the number of schemas that one refers to.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::REGISTRY_PASSWORD;
use crate::connect::error::{RequestError, refusal, transient};
use crate::connect::security::{Login, secret, tls_client};
use crate::connect::wire::{BrokerServer, ServerConnection, address_of, malformed_answer};
use crate::connect::{SystemSection, TextField};
use crate::control::Control;
use crate::security::TlsClient;

/// Maximum number of bytes in an answer.
const LONGEST_ANSWER: usize = 1 << 20;

/// Maximum number of schemas that one schema refers to, directly or indirectly.
const MAX_REFERENCES: usize = 64;

/// Maximum number of header lines, and of chunks, in an answer.
const MAX_LINES: usize = 256;

/// A registry as named in a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registry {
    server: BrokerServer,
    /// Prefix of the paths of its interface, without a slash at its end.
    base: String,
}

/// A schema as the registry returns it.
#[derive(Deserialize)]
struct StoredSchema {
    schema: String,
    #[serde(rename = "schemaType")]
    kind: Option<String>,
    #[serde(default)]
    references: Vec<SchemaReference>,
}

#[derive(Deserialize, PartialEq)]
struct SchemaReference {
    subject: String,
    version: u32,
}

impl Registry {
    /// Reads `registry` and the fields of its user; reports a URL that can't be used. TLS has the
    /// settings of the topic's own connections.
    pub(super) fn read(settings: &SystemSection<'_, '_>, url: &TextField<'_>) -> Option<Self> {
        let user = settings.section.text("registry_user").map(|user| user.value.into());
        let login = Login { user, password: secret(settings, REGISTRY_PASSWORD) };
        let found = parse(url.value);
        if found.is_none() {
            url.report(
                "expected the address of a schema registry, such as \"https://host:8081\", without a user",
            );
        }
        let (is_encrypted, address, base) = found?;
        let tls =
            is_encrypted.then(|| TlsClient { server_name: None, ..tls_client(settings).unwrap_or_default() });
        Some(Registry { server: BrokerServer { address, tls, login, ..BrokerServer::default() }, base })
    }

    fn name(&self) -> String {
        let scheme = if self.server.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.server.address, self.base)
    }

    /// Returns the text of a schema, after those of the schemas that it refers to. The list is
    /// empty if the registry has no such schema.
    pub(super) fn schema(&self, number: u32, control: &Control) -> Result<Vec<String>, RequestError> {
        let mut texts = Vec::new();
        if let Some(found) = self.get(&format!("/schemas/ids/{number}"), control)? {
            self.collect(found, (&mut texts, &mut Vec::new()), control)?;
        }
        Ok(texts)
    }

    /// Adds a schema after the schemas that it refers to. Each is fetched once.
    fn collect(
        &self,
        found: StoredSchema,
        (texts, fetched): (&mut Vec<String>, &mut Vec<SchemaReference>),
        control: &Control,
    ) -> Result<(), RequestError> {
        for reference in found.references {
            if fetched.contains(&reference) {
                continue;
            }
            if fetched.len() >= MAX_REFERENCES {
                return Err(refusal(self.name(), "a schema refers to too many others"));
            }
            let path = format!("/subjects/{}/versions/{}", encoded(&reference.subject), reference.version);
            fetched.push(reference);
            let referred = self.get(&path, control)?;
            let referred =
                referred.ok_or_else(|| refusal(self.name(), "a schema refers to one that is not there"))?;
            self.collect(referred, (texts, fetched), control)?;
        }
        let kind = found.kind.as_deref().unwrap_or("AVRO");
        // Any other text is not a schema in Avro.
        texts.push(if kind == "AVRO" { found.schema } else { String::new() });
        Ok(())
    }

    fn get(&self, path: &str, control: &Control) -> Result<Option<StoredSchema>, RequestError> {
        let mut connection = self.server.connect(control)?;
        if self.server.login.password.is_some() {
            self.server.warn_of_exposure(&connection, "password", &self.name());
        }
        connection.send(self.request(path, control)?.as_bytes())?;
        let (status, body) = answer(&mut connection)?;
        match status {
            200 => {
                let found = serde_json::from_slice(&body);
                found.map(Some).map_err(|_| transient(format!("{}: the answer is not a schema", self.name())))
            }
            404 => Ok(None),
            401 | 403 => {
                let hint = match &self.server.login.password {
                    Some(password) => format!("see registry_user and {}", password.field()),
                    None => "add registry_user, and registry_password_env or registry_password_file".into(),
                };
                let words = format!("the schema registry refuses the user or the password: {hint}");
                Err(refusal(self.name(), &words))
            }
            _ => Err(transient(format!("{}: the schema registry answers with status {status}", self.name()))),
        }
    }

    fn request(&self, path: &str, control: &Control) -> Result<Zeroizing<String>, RequestError> {
        let Registry { server: BrokerServer { address, login, .. }, base } = self;
        let accept = "application/vnd.schemaregistry.v1+json, application/json";
        let mut request = Zeroizing::new(format!(
            "GET {base}{path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n"
        ));
        if let (Some(user), Some(password)) = (&login.user, &login.password) {
            let password = password.read(control)?;
            let credentials = Zeroizing::new(format!("{user}:{}", password.text()));
            let credentials = Zeroizing::new(STANDARD.encode(&*credentials));
            request.push_str("Authorization: Basic ");
            request.push_str(&credentials);
            request.push_str("\r\n");
        }
        request.push_str("\r\n");
        Ok(request)
    }
}

/// Splits a URL into whether it is encrypted, `host:port`, and the prefix of the paths of the
/// interface.
fn parse(url: &str) -> Option<(bool, String, String)> {
    let encrypted = url.strip_prefix("https://").map(|rest| (true, 443, rest));
    let (is_encrypted, port, rest) =
        encrypted.or(url.strip_prefix("http://").map(|rest| (false, 80, rest)))?;
    let is_plain = rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#@".contains(&byte));
    let (address, base) = address_of(rest, port).filter(|_| is_plain)?;
    let base = base.trim_end_matches('/');
    let base = if base.is_empty() { String::new() } else { format!("/{base}") };
    Some((is_encrypted, address, base))
}

/// Reads the status and the body of an answer.
fn answer(connection: &mut ServerConnection) -> io::Result<(u16, Vec<u8>)> {
    let mut line = Vec::new();
    connection.line(&mut line)?;
    let status = std::str::from_utf8(&line).ok().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.filter(|_| line.starts_with(b"HTTP/1.")).ok_or_else(malformed_answer)?;
    let (mut length, mut is_chunked) = (None, false);
    for lines in 0.. {
        connection.line(&mut line)?;
        if line.is_empty() {
            break;
        }
        let text = std::str::from_utf8(&line).map_err(|_| malformed_answer())?;
        let (name, value) = text.split_once(':').ok_or_else(malformed_answer)?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.trim().parse().map_err(|_| malformed_answer())?),
            "transfer-encoding" => is_chunked = value.trim().eq_ignore_ascii_case("chunked"),
            _ if lines > MAX_LINES => return Err(malformed_answer()),
            _ => {}
        }
    }
    let mut body = Vec::new();
    if !is_chunked {
        let length = length.filter(|&length| length <= LONGEST_ANSWER).ok_or_else(malformed_answer)?;
        connection.take(length, &mut body)?;
        return Ok((status, body));
    }
    loop {
        connection.line(&mut line)?;
        let size = std::str::from_utf8(&line).ok().and_then(|line| line.split(';').next());
        let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let size = size.filter(|size| *size <= LONGEST_ANSWER - body.len()).ok_or_else(malformed_answer)?;
        if size == 0 {
            return Ok((status, body));
        }
        connection.take(size, &mut body)?;
        connection.line(&mut line)?;
    }
}

/// Encodes a part of a path.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_of_http() {
        let check = |url, expected: Option<(bool, &str, &str)>| {
            let found = parse(url);
            let found = found.as_ref().map(|(tls, address, base)| (*tls, address.as_str(), base.as_str()));
            assert_eq!(found, expected, "{url}");
        };
        check("http://h", Some((false, "h:80", "")));
        check("https://h/", Some((true, "h:443", "")));
        check("http://[::1]:8081/apis/ccompat/v7/", Some((false, "[::1]:8081", "/apis/ccompat/v7")));
        for url in
            ["h:80", "ftp://h", "http://u:p@h", "http://h?key=k", "http://h:x", "http://", "http://h/a b"]
        {
            check(url, None);
        }
    }

    #[test]
    fn subjects_are_encoded() {
        assert_eq!(encoded("a.b-C/1 é"), "a.b-C%2F1%20%C3%A9");
    }
}
