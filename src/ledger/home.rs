//! Directory of a user's ledgers for all data sets, from the environment or the user's
//! configuration.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::whole;

const VARIABLE: &str = "HUSHFLOW_LEDGER";

const MAX_CONFIG: u64 = 1 << 20;

/// A directory with one ledger per data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerHome(PathBuf);

/// Reasons why the directory cannot be found or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LedgerHomeError {
    /// The configuration file exists but cannot be read.
    #[error("{}: can't be read: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The configuration file has unexpected content.
    #[error("{}: {reason}: expected ledger = \"DIR\", and nothing else", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// No data set is named, so the ledger is undetermined.
    #[error(
        "ledgers are kept in {} (by HUSHFLOW_LEDGER or the user's configuration), but nothing says which data these are: name them, \
         with data_set = \"flights\" under [ledger] in the pipeline file, or for an estimate from a file with --data-set flights",
        path.display()
    )]
    NoData {
        /// The directory of all ledgers.
        path: PathBuf,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserConfig {
    ledger: Option<PathBuf>,
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

impl LedgerHome {
    /// Returns the directory that `HUSHFLOW_LEDGER` names, or otherwise `ledger` in
    /// `hushflow/config.toml` of the user's configuration (`XDG_CONFIG_HOME`, or `.config` in the
    /// home directory). `None` if neither names one.
    ///
    /// # Errors
    /// [`LedgerHomeError`] for an unreadable configuration, because it may name a directory.
    pub fn find() -> Result<Option<Self>, LedgerHomeError> {
        if let Some(directory) = variable(VARIABLE) {
            return absolute(&directory).map(Some);
        }
        let folder = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        folder.map_or(Ok(None), |folder| Self::configured(&folder.join("hushflow/config.toml")))
    }

    fn configured(file: &Path) -> Result<Option<Self>, LedgerHomeError> {
        let io = |source| LedgerHomeError::Io { path: file.into(), source };
        let config = |reason: String| LedgerHomeError::Config { path: file.into(), reason };
        let text = match whole::read_text(file, MAX_CONFIG) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(config(format!("found more than {MAX_CONFIG} bytes")));
            }
            Err(error) => return Err(io(error)),
        };
        let UserConfig { ledger } = toml::from_str(&text).map_err(|error| config(error.message().into()))?;
        if ledger.as_deref().is_some_and(|ledger| ledger.starts_with("~")) {
            return Err(config(
                "found a path that begins with ~, which only shells expand: write it in full".into(),
            ));
        }
        // Relative to the file, so that the meaning does not depend on the working directory.
        let directory = ledger.map(|ledger| file.parent().unwrap_or(Path::new("")).join(ledger));
        directory.map(|directory| absolute(&directory)).transpose()
    }

    /// Returns the directory of a data set's ledger. If needed, creates the directory of all
    /// ledgers, which only its owner can access.
    ///
    /// # Errors
    /// [`LedgerHomeError::NoData`] if the data set has no name, and [`LedgerHomeError::Io`].
    pub fn of_data(&self, data_set: Option<&str>) -> Result<PathBuf, LedgerHomeError> {
        let Some(data_set) = data_set else { return Err(LedgerHomeError::NoData { path: self.0.clone() }) };
        let created = fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.0);
        created.map_err(|source| LedgerHomeError::Io { path: self.0.clone(), source })?;
        Ok(self.0.join(data_set))
    }
}

fn absolute(directory: &Path) -> Result<LedgerHome, LedgerHomeError> {
    std::path::absolute(directory)
        .map(LedgerHome)
        .map_err(|source| LedgerHomeError::Io { path: directory.into(), source })
}

/// Checks the name of a data set, which is also a directory name.
///
/// # Errors
/// The expected form.
pub fn data_set_name(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && text.len() <= 100 && text.chars().all(inner) {
        Ok(text.into())
    } else {
        Err(format!("found {text:?}, expected a name of letters, digits, -, _ and ., such as flights-2013"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_set_name_is_not_a_path() {
        for name in ["flights", "a", "2013_flights-v1.2"] {
            assert_eq!(data_set_name(name).as_deref(), Ok(name));
        }
        for name in ["", ".", "..", "../x", "a/b", ".hidden", "-x", "a b", "ü", &"x".repeat(101)] {
            assert!(data_set_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_configuration_names_a_directory_beside_it_or_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        assert_eq!(LedgerHome::configured(&file).unwrap(), None);
        let check = |text: &str| {
            fs::write(&file, text).unwrap();
            LedgerHome::configured(&file)
        };
        assert_eq!(check("").unwrap(), None);
        assert_eq!(check("ledger = 'all'").unwrap(), Some(LedgerHome(folder.path().join("all"))));
        assert_eq!(check("ledger = '/all'").unwrap(), Some(LedgerHome("/all".into())));
        for text in ["ledger = 1", "ledgers = 'x'", "ledger ="] {
            let message = check(text).unwrap_err().to_string();
            assert!(message.contains("expected ledger = \"DIR\""), "{message}");
        }
        for text in ["ledger = '~/all'", "ledger = '~'"] {
            let message = check(text).unwrap_err().to_string();
            assert!(message.contains("which only shells expand"), "{message}");
        }
        let endless = folder.path().join("endless.toml");
        std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
        let message = LedgerHome::configured(&endless).unwrap_err().to_string();
        assert!(message.contains("found more than 1048576 bytes"), "{message}");
    }
}
