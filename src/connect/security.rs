//! Fields of a pipeline file that secure the connection to a server, shared by all systems that
//! offer them. A system lists them in [`System::security`](super::System), and reads them here.
//!
//! A path never holds a secret ([`holds_secret`]): it is quoted in messages and shared with the
//! file.

use std::path::PathBuf;

use super::{SystemSection, TextField};
use crate::document::definition::{FieldDefinition, FieldType};
use crate::security::{SecretFields, SecretReference, TlsClient, TlsIdentity, TlsServer};

/// Fields that some systems offer, and the schemes of one of these systems.
pub(super) type SecurityOffer = (&'static [FieldDefinition], &'static [&'static str]);

/// All fields that systems may offer.
pub(super) static FIELDS: &[&[FieldDefinition]] =
    &[TLS_FIELDS, TLS_CLIENT_FIELDS, TLS_LISTENING_FIELDS, USER_FIELDS, TOKEN_FIELDS, KEY_FIELDS];

/// Encryption, wherever it is offered.
pub(super) static TLS_FIELDS: &[FieldDefinition] = &[
    FieldDefinition::with_default(
        "tls",
        FieldType::Flag,
        "false",
        "true",
        "Whether the connection is encrypted, and the certificate of its server checked.",
    ),
    FieldDefinition::optional(
        "tls_certificate",
        FieldType::Text,
        "no certificate is presented",
        "\"client.pem\"",
        "Our own certificate, and those between it and its root, in PEM. A listening end needs one.",
    ),
    FieldDefinition::optional(
        "tls_key",
        FieldType::Text,
        "no certificate is presented",
        "\"client.key\"",
        "Private key of `tls_certificate`, in PEM.",
    ),
];

/// Encryption of connections to servers.
pub(super) static TLS_CLIENT_FIELDS: &[FieldDefinition] = &[
    TLS_ROOTS,
    FieldDefinition::optional(
        "tls_server_name",
        FieldType::Text,
        "the host in `path`",
        "\"broker.example.org\"",
        "Name that the server's certificate must have.",
    ),
];

pub(super) const TLS_ROOTS: FieldDefinition = FieldDefinition::optional(
    "tls_roots",
    FieldType::Text,
    "the roots that this machine trusts",
    "\"ca.pem\"",
    "Roots that may have signed the server's certificate, in PEM; no others are trusted.",
);

/// Encryption of connections that clients open.
pub(super) static TLS_LISTENING_FIELDS: &[FieldDefinition] = &[FieldDefinition::optional(
    "tls_client_roots",
    FieldType::Text,
    "clients need no certificate",
    "\"clients.pem\"",
    "Roots that must have signed the certificate of a client, in PEM.",
)];

/// A user and its password.
pub(super) static USER_FIELDS: &[FieldDefinition] = &[
    FieldDefinition::optional("user", FieldType::Text, "the server's default", "\"hushflow\"", "User name."),
    FieldDefinition::optional(
        PASSWORD.variable,
        VARIABLE,
        "no password",
        "\"BROKER_PASSWORD\"",
        "Environment variable that holds the password.",
    ),
    FieldDefinition::optional(
        PASSWORD.file,
        FieldType::Text,
        "no password",
        "\"broker.password\"",
        "File that holds the password, in one line.",
    ),
];

pub(super) static TOKEN_FIELDS: &[FieldDefinition] = &[
    FieldDefinition::optional(
        TOKEN.variable,
        VARIABLE,
        "no token",
        "\"BROKER_TOKEN\"",
        "Environment variable that holds the token.",
    ),
    FieldDefinition::optional(
        TOKEN.file,
        FieldType::Text,
        "no token",
        "\"broker.token\"",
        "File that holds the token, in one line.",
    ),
];

pub(super) const NKEY: SecretFields = SecretFields { variable: "nkey_env", file: "nkey_file" };
pub(super) const CREDENTIALS: SecretFields =
    SecretFields { variable: "credentials_env", file: "credentials_file" };

/// Keys of a user of NATS.
pub(super) static KEY_FIELDS: &[FieldDefinition] = &[
    FieldDefinition::optional(
        NKEY.variable,
        VARIABLE,
        "no key",
        "\"NATS_SEED\"",
        "Environment variable that holds the seed of a user's NKey.",
    ),
    FieldDefinition::optional(
        NKEY.file,
        FieldType::Text,
        "no key",
        "\"user.nk\"",
        "File that holds the seed of a user's NKey, in one line.",
    ),
    FieldDefinition::optional(
        CREDENTIALS.variable,
        VARIABLE,
        "no credentials",
        "\"NATS_CREDENTIALS\"",
        "Environment variable that holds the text of a credentials file.",
    ),
    FieldDefinition::optional(
        CREDENTIALS.file,
        FieldType::Text,
        "no credentials",
        "\"user.creds\"",
        "Credentials file of a user: a JWT and the seed of its NKey.",
    ),
];

const PASSWORD: SecretFields = SecretFields { variable: "password_env", file: "password_file" };
pub(super) const TOKEN: SecretFields = SecretFields { variable: "token_env", file: "token_file" };

/// The name of an environment variable.
pub(super) const VARIABLE: FieldType = FieldType::Pattern(
    "the name of an environment variable, such as \"BROKER_PASSWORD\"",
    "^[A-Za-z_][A-Za-z0-9_]*$",
);

/// A user and the password, each if given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretReference>,
}

impl Login {
    /// Names the fields to look at after a refused login.
    pub(super) fn hint(&self) -> String {
        match (&self.user, &self.password) {
            (_, None) => format!(
                "add {} or {}, and user unless it is the default one",
                PASSWORD.variable, PASSWORD.file
            ),
            (None, Some(password)) => format!("see {}", password.field()),
            (Some(_), Some(password)) => format!("see user and {}", password.field()),
        }
    }

    /// Reads [`USER_FIELDS`].
    pub(super) fn read(settings: &SystemSection<'_, '_>) -> Self {
        let user = settings.section.text("user").map(|user| user.value.into());
        Login { user, password: secret(settings, PASSWORD) }
    }

    /// Reads [`USER_FIELDS`] for a server on which every user has a password.
    pub(super) fn with_password(settings: &SystemSection<'_, '_>) -> Self {
        let login = Login::read(settings);
        if login.password.is_none()
            && !settings.section.has(PASSWORD.variable)
            && !settings.section.has(PASSWORD.file)
        {
            settings.section.refuse("user", "a user needs a password: add password_env or password_file");
        }
        login
    }
}

/// Reads one of two fields that name a secret. Messages don't quote them: someone may have written
/// the secret itself.
pub(super) fn secret(settings: &SystemSection<'_, '_>, fields: SecretFields) -> Option<SecretReference> {
    let section = settings.section;
    let path = section.text(fields.file);
    let variable = section.text(fields.variable).and_then(|name| {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        let valid = name.value.starts_with(first)
            && name.value.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !valid {
            name.report(format!(
                "expected {}: the variable holds the secret, not this file",
                VARIABLE.expected()
            ));
        }
        valid.then_some(name)
    });
    if let (Some(_), Some(variable)) = (&path, &variable) {
        variable.report(format!("{} names the secret already: leave one of them out", fields.file));
    }
    let variable = variable.map(|name| SecretReference::variable(name.value, fields));
    variable.or_else(|| path.map(|path| SecretReference::file(settings.base, path.value, fields)))
}

/// Reads [`TLS_FIELDS`] and [`TLS_CLIENT_FIELDS`]; `None` without `tls = true`.
pub(super) fn tls_client(settings: &SystemSection<'_, '_>) -> Option<TlsClient> {
    let section = settings.section;
    let file = |key| section.text(key).map(|path| settings.base.join(path.value));
    let tls = TlsClient {
        roots: file("tls_roots"),
        identity: identity(settings),
        server_name: section.text("tls_server_name").map(|name| name.value.into()),
    };
    let is_enabled = is_enabled(settings, &["tls_roots", "tls_certificate", "tls_server_name"]);
    is_enabled.then_some(tls)
}

/// Reads [`TLS_FIELDS`] and [`TLS_LISTENING_FIELDS`]; `None` without `tls = true`.
pub(super) fn tls_server(settings: &SystemSection<'_, '_>) -> Option<TlsServer> {
    let section = settings.section;
    let client_roots = section.text("tls_client_roots").map(|path| settings.base.join(path.value));
    let identity = identity(settings);
    if !is_enabled(settings, &["tls_certificate", "tls_client_roots"]) {
        return None;
    }
    if !section.has("tls_certificate") && !section.has("tls_key") {
        section.refuse("tls", "a listening end needs a certificate: add tls_certificate and tls_key");
    }
    let TlsIdentity { certificate, key } = identity?;
    Some(TlsServer::new(certificate, key, client_roots))
}

/// Reads `tls`. Refuses `others` without it.
fn is_enabled(settings: &SystemSection<'_, '_>, others: &[&'static str]) -> bool {
    let section = settings.section;
    let is_enabled = section.flag("tls").unwrap_or(false);
    for other in others.iter().filter(|_| !is_enabled && !section.has("tls")) {
        section.refuse(other, "this field needs tls = true: add it");
    }
    if is_enabled && cfg!(not(feature = "tls")) {
        section.refuse("tls", crate::security::SecurityError::Without.to_string());
    }
    is_enabled
}

/// Reads the certificate and its key.
fn identity(settings: &SystemSection<'_, '_>) -> Option<TlsIdentity> {
    let section = settings.section;
    let file = |key| section.text(key).map(|path| -> PathBuf { settings.base.join(path.value) });
    let (certificate, key) = (file("tls_certificate"), file("tls_key"));
    match (section.has("tls_certificate"), section.has("tls_key")) {
        (true, false) => section.refuse("tls_certificate", "a certificate needs its key: add tls_key"),
        (false, true) => section.refuse("tls_key", "a key needs its certificate: add tls_certificate"),
        _ => {}
    }
    Some(TlsIdentity { certificate: certificate?, key: key? })
}

/// Reports a path that holds a user or a secret. The message does not quote it.
pub(super) fn refuse_secret(path: &TextField<'_>) -> bool {
    let is_secret = holds_secret(path.value);
    if is_secret {
        path.report(
            "an address holds no user and no secret, because files of pipelines and messages are shared: leave them out of \
             path, and name them with user and password_env or password_file (token_env or token_file)",
        );
    }
    is_secret
}

/// Returns a path for a message. Of an address that can't be parsed only the scheme is quoted,
/// because a secret may stand where a port or a database should.
pub(super) fn quotable(path: &str) -> String {
    match path.split_once("://") {
        Some((scheme, _)) => format!("\"{scheme}://…\""),
        None => format!("{path:?}"),
    }
}

/// Whether a path is an address with a part before `@`, with a query or fragment, with a host that
/// has more than one `:` outside of brackets, or with settings behind a database. No system needs
/// these, and a secret may have any name there. Paths of files may hold any character, but `:`
/// before `@` is an address without its scheme.
pub(crate) fn holds_secret(path: &str) -> bool {
    match path.split_once("://") {
        Some((scheme, rest)) => {
            let hosts = rest.split('/').next().unwrap_or_default().split(',');
            let mut ports = hosts.map(|host| host.rsplit(']').next().unwrap_or_default());
            let has_settings = scheme.starts_with("postgres") && rest.contains([';', '=']);
            !scheme.starts_with("unix")
                && (rest.contains(['@', '?', '#'])
                    || rest.contains("%40")
                    || has_settings
                    || ports.any(|port| port.matches(':').count() > 1))
        }
        None => path.split_once('@').is_some_and(|(before, _)| before.contains(':')),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{sink_of, source_of};

    #[test]
    fn an_address_with_a_secret_is_refused_for_every_scheme_and_not_quoted() {
        for scheme in ["tcp", "redis", "rediss", "nats", "kafka", "postgres", "http-listen", "ftp"] {
            for rest in [
                "u:hidden@h:1",
                ":hidden@h:1",
                "hidden@h:1",
                "h:1?password=hidden",
                "h:1#hidden",
                "u%40hidden",
                "u:hidden:h:1",
            ] {
                let path = format!("path = '{scheme}://{rest}', stream = 's', format = 'ndjson'");
                let refused = [source_of(&path).unwrap_err(), sink_of(&path).unwrap_err()];
                let expected =
                    |message: &String| message.contains("password_file") && !message.contains("hidden");
                assert!(refused.iter().all(expected), "{path}: {refused:?}");
            }
        }
        for path in ["redis:/u:hidden@h:1", "u:hidden@h:1", "postgres://h:1/d;password=hidden"] {
            let refused = source_of(&format!("path = '{path}', format = 'csv'")).unwrap_err();
            assert!(refused.contains("password_file") && !refused.contains("hidden"), "{refused}");
        }
        for scheme in ["tcp", "tcp-listen", "redis", "nats", "kafka", "postgres", "http-listen", "ftp"] {
            for rest in ["h:hidden", "h:1/hidden/", "h:hidden/d"] {
                let path = format!("path = '{scheme}://{rest}', stream = 's', format = 'ndjson'");
                let refused = [source_of(&path).unwrap_err(), sink_of(&path).unwrap_err()];
                assert!(refused.iter().all(|message| !message.contains("hidden")), "{path}: {refused:?}");
            }
        }
        let listed = source_of("path = ['a.csv', 'tcp://h:hidden'], format = 'csv'").unwrap_err();
        assert!(!listed.contains("hidden"), "{listed}");
        let listed = source_of("path = ['a.csv', 'tcp://u:hidden@h:1'], format = 'csv'").unwrap_err();
        assert!(!listed.contains("hidden"), "{listed}");
        assert!(source_of("path = 'a@b#d.csv', format = 'csv'").is_ok());
        assert!(source_of("path = 'unix:///run/a@b', format = 'csv'").is_ok());
    }

    #[test]
    fn a_secret_is_named_by_one_field() {
        let source = |fields: &str| source_of(&format!("path = 'nats://h', stream = 's', {fields}"));
        assert!(source("user = 'u', password_env = 'P'").is_ok());
        assert!(source("user = 'u', password_file = 'p'").is_ok());
        let check = |fields: &str, part: &str| {
            let error = source(fields).unwrap_err();
            assert!(error.contains(part) && !error.contains("hid-den"), "{error}");
        };
        check("user = 'u'", "add password_env");
        check("password_env = 'P', password_file = 'p'", "leave one of them out");
        check("password_env = 'hid-den'", "the variable holds the secret");
        check("password = 'hid-den'", "secrets are given by reference: use password_env or password_file");
        check("secret = 'hid-den'", "use password_env or password_file");
        check("token = 'hid-den'", "use token_env or token_file");
        check("password_env = ['hid-den']", "expected");
        check("password_file = { hid-den = 1 }", "expected");
        let error = source_of("path = 'tcp://h:1', format = 'csv', user = 'u'").unwrap_err();
        assert!(error.contains("this field is for"), "{error}");
    }

    #[test]
    fn a_user_and_a_password_are_not_printed() {
        let shown = source_of("path = 'redis://h', stream = 's', user = 'u', password_env = 'HIDDEN'");
        assert!(!format!("{shown:?}").contains("HIDDEN"), "{shown:?}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_has_fields_that_need_each_other() {
        let source = |fields: &str| source_of(&format!("path = 'redis://h', stream = 's', {fields}"));
        assert!(source("tls = true").is_ok() && source("tls = false").is_ok());
        assert!(source("tls = true, tls_roots = 'ca.pem', tls_server_name = 'h'").is_ok());
        assert!(source("tls = true, tls_certificate = 'c.pem', tls_key = 'c.key'").is_ok());
        let check = |fields: &str, part: &str| {
            let error = source(fields).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        check("tls_roots = 'ca.pem'", "needs tls = true");
        check("tls = true, tls_certificate = 'c.pem'", "add tls_key");
        check("tls = true, tls_key = 'c.key'", "add tls_certificate");
        check("tls = 'yes'", "true or false");
    }
}
