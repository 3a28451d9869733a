//! Login to a database.

use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;

use super::connection::{DatabaseConnection, integer};
use super::section::Database;
use crate::connect::error::RequestError;
use crate::connect::wire::malformed_answer;
use crate::control::Control;

/// Maximum number of SCRAM iterations that a server may request, because each takes time here. The
/// default of PostgreSQL is 4096.
const ROUNDS_LIMIT: u32 = 1_000_000;

/// The user if the pipeline does not name one.
const USER: &str = "postgres";

/// Codes of the server's answers to a login.
const ACCEPTED: i32 = 0;
const CLEAR_TEXT: i32 = 3;
const MD5: i32 = 5;
const SASL: i32 = 10;
const SASL_CONTINUE: i32 = 11;
const SASL_FINAL: i32 = 12;

impl DatabaseConnection {
    /// Logs in. Times come in UTC, and texts in UTF-8.
    pub(super) fn log_in(&mut self, database: &Database, control: &Control) -> Result<(), RequestError> {
        let login = &database.server.login;
        let user = login.user.as_deref().unwrap_or(USER);
        let parameters = [
            ("user", user),
            ("database", database.database.as_str()),
            ("application_name", "hushflow"),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO"),
            ("TimeZone", "UTC"),
        ];
        self.send(|bytes| frontend::startup_message(parameters, bytes))?;
        loop {
            let message = self.message()?;
            if message.tag == b'Z' {
                return self.skip(message);
            }
            if message.tag != b'R' {
                self.skip(message)?;
                continue;
            }
            self.take(message)?;
            let body = std::mem::take(&mut self.body);
            let mut rest = body.as_slice();
            let method = integer::<4>(&mut rest)?;
            if method == ACCEPTED {
                continue;
            }
            let Some(password) = &login.password else {
                let words = "the server asks for a password: add user, and password_env or password_file";
                return Err(self.refusal(words));
            };
            let password = password.read(control)?;
            let password = password.text().as_bytes();
            match method {
                MD5 => {
                    let salt = rest.try_into().map_err(|_| malformed_answer())?;
                    let answer = md5_hash(user.as_bytes(), password, salt);
                    self.send(|bytes| frontend::password_message(answer.as_bytes(), bytes))?;
                }
                SASL if rest.split(|&byte| byte == 0).any(|name| name == SCRAM_SHA_256.as_bytes()) => {
                    self.scram(password)?;
                }
                // Over TLS, the certificate has proved the server's identity.
                CLEAR_TEXT if database.server.tls.is_some() => {
                    self.send(|bytes| frontend::password_message(password, bytes))?;
                }
                CLEAR_TEXT => {
                    let words = "the server asks for the password in clear text: add tls = true, or let the server \
                                 ask for scram-sha-256";
                    return Err(self.refusal(words));
                }
                _ => return Err(self.refusal("the server asks for a login that hushflow does not have")),
            }
        }
    }

    /// Proves that we know the password, and checks that the server does.
    fn scram(&mut self, password: &[u8]) -> Result<(), RequestError> {
        let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
        let first = scram.message().to_vec();
        self.send(|bytes| frontend::sasl_initial_response(SCRAM_SHA_256, &first, bytes))?;
        let challenge = self.sasl(SASL_CONTINUE)?;
        if !has_few_rounds(&challenge) {
            return Err(malformed_answer().into());
        }
        scram.update(&challenge)?;
        let answer = scram.message().to_vec();
        self.send(|bytes| frontend::sasl_response(&answer, bytes))?;
        let proof = self.sasl(SASL_FINAL)?;
        scram.finish(&proof).map_err(|_| self.refusal("the server does not know the password"))
    }

    /// Returns the text of the next part of a login.
    fn sasl(&mut self, part: i32) -> Result<Vec<u8>, RequestError> {
        let message = self.message()?;
        self.take(message)?;
        let mut body = self.body.as_slice();
        match message.tag == b'R' && integer::<4>(&mut body)? == part {
            true => Ok(body.to_vec()),
            false => Err(malformed_answer().into()),
        }
    }
}

/// Whether a challenge asks for a number of rounds within the limit.
fn has_few_rounds(challenge: &[u8]) -> bool {
    let text = String::from_utf8_lossy(challenge);
    let rounds = text.split(',').find_map(|part| part.strip_prefix("i="));
    rounds.and_then(|rounds| rounds.parse::<u32>().ok()).is_some_and(|rounds| rounds <= ROUNDS_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_not_ask_for_endless_work() {
        assert!(has_few_rounds(b"r=x,s=y,i=4096"));
        assert!(
            ["r=x,s=y,i=4294967295", "r=x,s=y", "i=", "i=99999999999"]
                .iter()
                .all(|text| !has_few_rounds(text.as_bytes()))
        );
    }
}
