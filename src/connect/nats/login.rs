//! Authentication of a client with NATS
//! (`docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro`).

use base64::prelude::{BASE64_URL_SAFE_NO_PAD as BASE64_URL, Engine};
use serde_json::Value;

use crate::connect::SystemSection;
use crate::connect::security::{CREDENTIALS, Login, NKEY, TOKEN, secret};
use crate::control::Control;
use crate::security::{SecretReference, SecurityError};

#[cfg_attr(not(feature = "tls"), path = "login/no_key.rs")]
mod key;

use key::SigningKey;

/// The fields of a section by which a client logs in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum NatsLogin {
    /// By the user and password of the server's section, or without credentials.
    #[default]
    Password,
    Token(SecretReference),
    Nkey(SecretReference),
    Credentials(SecretReference),
}

impl NatsLogin {
    /// Reads the fields. Reports a second way to log in.
    pub(super) fn read(settings: &SystemSection<'_, '_>, login: &Login) -> Self {
        let ways = [
            secret(settings, TOKEN).map(NatsLogin::Token),
            secret(settings, NKEY).map(NatsLogin::Nkey),
            secret(settings, CREDENTIALS).map(NatsLogin::Credentials),
        ];
        let mut ways = ways.into_iter().flatten();
        let way = ways.next();
        if ways.next().is_some() || (way.is_some() && *login != Login::default()) {
            settings
                .section
                .report("there are several ways to log in: keep one of user, token, nkey and credentials");
        }
        if login.password.is_some() && login.user.is_none() {
            settings.section.report("a password needs a user: add user");
        }
        way.unwrap_or_default()
    }

    /// Names the fields to look at after a refused login.
    pub(super) fn hint(&self, login: &Login) -> String {
        match self {
            NatsLogin::Password if login.user.is_none() => {
                "add user and password_env, token_env, nkey_env or credentials_env (or …_file)".into()
            }
            NatsLogin::Password => login.hint(),
            NatsLogin::Token(secret) | NatsLogin::Nkey(secret) | NatsLogin::Credentials(secret) => {
                format!("see {}", secret.field())
            }
        }
    }

    /// Returns the secret that is sent unchanged, if any. Keys are not sent: they sign.
    pub(super) fn sent(&self, login: &Login) -> Option<&'static str> {
        match self {
            NatsLogin::Password => login.password.as_ref().map(|_| "password"),
            NatsLogin::Token(_) => Some("token"),
            NatsLogin::Nkey(_) | NatsLogin::Credentials(_) => None,
        }
    }

    /// Adds the client's credentials to its first message. The server may have sent a nonce to
    /// sign.
    ///
    /// # Errors
    /// If a secret can't be read or used.
    pub(super) fn add_to(
        &self,
        hello: &mut Value,
        login: &Login,
        nonce: Option<&str>,
        control: &Control,
    ) -> Result<(), SecurityError> {
        match self {
            NatsLogin::Password => {
                if let Login { user: Some(user), password: Some(password) } = login {
                    hello["user"] = user.as_str().into();
                    hello["pass"] = password.read(control)?.text().into();
                }
            }
            NatsLogin::Token(token) => hello["auth_token"] = token.read(control)?.text().into(),
            NatsLogin::Nkey(seed) => {
                let key = SigningKey::of_seed(seed.read(control)?.text(), seed)?;
                hello["nkey"] = key.public().into();
                hello["sig"] = signature(&key, nonce).into();
            }
            NatsLogin::Credentials(credentials) => {
                let text = credentials.read_text(control)?;
                let part = |title: &str| {
                    let mut lines =
                        text.text().lines().map(str::trim).skip_while(|line| !line.contains(title));
                    lines.nth(1).ok_or_else(|| credentials.unusable("a NATS credentials file"))
                };
                let key = SigningKey::of_seed(part("BEGIN USER NKEY SEED")?, credentials)?;
                hello["jwt"] = part("BEGIN NATS USER JWT")?.into();
                hello["sig"] = signature(&key, nonce).into();
            }
        }
        Ok(())
    }
}

/// Signs the nonce of the server. A server without a nonce supports no keys and refuses the client.
fn signature(key: &SigningKey, nonce: Option<&str>) -> String {
    BASE64_URL.encode(key.sign(nonce.unwrap_or_default().as_bytes()))
}
