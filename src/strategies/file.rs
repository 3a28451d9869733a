//! Saved strategies: results of optimisers, stored for reuse.
//!
//! A saved strategy is a JSON object with a checksum. In the folder of saved strategies its file
//! name is the [fingerprint](StrategyRequest::fingerprint) of the request. No guarantee depends on
//! such a file: the sensitivity is computed from the C that runs. A damaged file can only reduce
//! accuracy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hushflow_mechanism::participation::Participation;
use hushflow_mechanism::strategy::StrategyChoice;
use hushflow_mechanism::workload::Workload;
use serde::{Deserialize, Serialize};

use super::StrategiesError;
use crate::whole::{NUMBERS, read_text};

/// First field of every file, with the version.
const FORMAT: &str = "hushflow strategy 1";

/// The request that a strategy answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StrategyRequest {
    /// Method: its name on the command line, and the other parameters of its fit.
    pub method: String,
    /// As on the command line. A matrix needs more than its name: see [`StrategyRequest::new`].
    pub workload: String,
    /// Number of steps.
    pub horizon: u64,
    /// As on the command line.
    pub participation: Participation,
}

impl StrategyRequest {
    /// Makes a request for `method`. A matrix workload is identified by a hash of its entries.
    pub fn new(method: String, workload: &Workload, horizon: u64, participation: Participation) -> Self {
        let workload = match workload {
            Workload::Matrix(matrix) => {
                let bits = matrix.rows().iter().flat_map(|entry| entry.to_bits().to_le_bytes());
                format!("matrix of {} rows, {:016x}", matrix.rows().nrows(), hash(bits))
            }
            other => other.to_string(),
        };
        Self { method, workload, horizon, participation }
    }

    /// Returns an identifier of the request, the name of its file.
    pub fn fingerprint(&self) -> String {
        let Self { method, workload, horizon, participation } = self;
        let text = format!("{FORMAT}\n{method}\n{workload}\n{horizon}\n{participation}");
        format!("{:016x}", hash(text.bytes()))
    }
}

/// FNV-1a.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A strategy with its request and quality.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedStrategy {
    format: String,
    /// The request.
    pub request: StrategyRequest,
    /// Total squared error at sensitivity 1; for buffers, the minimised error.
    pub objective: f64,
    /// Lower bound of the total squared error of every strategy for the request, if known.
    pub lower_bound: Option<f64>,
    /// The strategy.
    pub strategy: StrategyChoice,
    checksum: String,
}

impl SavedStrategy {
    /// Makes a strategy to save.
    pub fn new(
        request: StrategyRequest,
        strategy: StrategyChoice,
        objective: f64,
        lower_bound: Option<f64>,
    ) -> Self {
        let checksum = String::new();
        let saved = Self { format: FORMAT.into(), request, objective, lower_bound, strategy, checksum };
        Self { checksum: saved.computed_checksum(), ..saved }
    }

    fn computed_checksum(&self) -> String {
        let content = (&self.request, self.objective, self.lower_bound, &self.strategy);
        let strategy = serde_json::to_string(&content).unwrap_or_default();
        format!("{:08x}", crc32c::crc32c(strategy.as_bytes()))
    }

    /// Reads a saved strategy.
    ///
    /// # Errors
    /// [`StrategiesError`] for a file that is unreadable, no strategy, or damaged.
    pub fn load(path: &Path) -> Result<Self, StrategiesError> {
        let io = |source| StrategiesError::FileAccess { path: path.into(), action: "read", source };
        let refused = |reason| StrategiesError::FileFormat { path: path.into(), reason };
        let text = read_text(path, NUMBERS).map_err(io)?;
        let saved: Self = serde_json::from_str(&text).map_err(|error| refused(error.to_string()))?;
        if saved.format != FORMAT {
            return Err(refused(format!("it says `{}`", saved.format)));
        }
        if saved.checksum != saved.computed_checksum() {
            return Err(StrategiesError::FileChecksum { path: path.into() });
        }
        Ok(saved)
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// [`StrategiesError::FileAccess`].
    pub fn save(&self, path: &Path) -> Result<(), StrategiesError> {
        let io = |source| StrategiesError::FileAccess { path: path.into(), action: "written", source };
        let text = serde_json::to_string(self).map_err(io::Error::from).map_err(io)?;
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        fs::write(&draft, text).and_then(|()| fs::rename(&draft, path)).map_err(io)
    }
}

/// The folder of saved strategies: `HUSHFLOW_STRATEGIES`, or the user's cache.
fn folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("HUSHFLOW_STRATEGIES").or_else(|| {
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        Some(cache?.join("hushflow/strategies"))
    })
}

/// Returns the saved strategy for this request, if there is one.
pub fn recall(request: &StrategyRequest) -> Option<SavedStrategy> {
    let path = folder()?.join(request.fingerprint()).with_extension("json");
    SavedStrategy::load(&path).ok().filter(|saved| saved.request == *request)
}

/// Saves a strategy. Failures are ignored: the strategy can be found again.
pub fn remember(saved: &SavedStrategy) {
    if let Some(folder) = folder().filter(|folder| fs::create_dir_all(folder).is_ok()) {
        let path = folder.join(saved.request.fingerprint()).with_extension("json");
        // For example a full disk or a read-only folder.
        let _ = saved.save(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hushflow_mechanism::strategy::StrategyParameters;

    fn saved() -> SavedStrategy {
        let request = StrategyRequest::new("optimal".into(), &Workload::Prefix, 3, Participation::Single);
        let fitted = Some(StrategyParameters::Toeplitz(vec![1 << 40, 3, -7]));
        let name = "optimal".parse().unwrap();
        SavedStrategy::new(request, StrategyChoice { name, fitted }, 1.0 / 3.0, Some(0.3))
    }

    #[test]
    fn saved_strategies_are_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.json");
        saved().save(&path).unwrap();
        assert_eq!(SavedStrategy::load(&path).unwrap(), saved());
    }

    #[test]
    fn damaged_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.json");
        let text = serde_json::to_string(&saved()).unwrap();
        let check = |text: String, part: &str| {
            fs::write(&path, text).unwrap();
            let message = SavedStrategy::load(&path).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        };
        check(text.replace("-7", "-8"), "the checksum is wrong");
        check(text.replace("\"horizon\":3", "\"horizon\":4"), "the checksum is wrong");
        check(text.replace("strategy 1", "strategy 2"), "it says `hushflow strategy 2`");
        check(text[..text.len() / 2].into(), "this is not a strategy file");
        check("1,0\n0,1\n".into(), "this is not a strategy file");
        let absent = SavedStrategy::load(&directory.path().join("absent")).unwrap_err();
        assert!(matches!(absent, StrategiesError::FileAccess { action: "read", .. }));
    }

    #[test]
    fn fingerprints_distinguish_requests() {
        let matrix = |entry: f64| {
            Workload::from_matrix("w.csv", nalgebra::DMatrix::from_element(1, 1, entry)).unwrap()
        };
        let request = |method: &str, workload: &Workload, horizon, participation: &str| {
            StrategyRequest::new(method.into(), workload, horizon, participation.parse().unwrap())
                .fingerprint()
        };
        let all = [
            request("optimal", &Workload::Prefix, 10, "1"),
            request("coa", &Workload::Prefix, 10, "1"),
            request("optimal", &Workload::Average, 10, "1"),
            request("optimal", &Workload::Prefix, 11, "1"),
            request("optimal", &Workload::Prefix, 10, "2x5"),
            request("optimal", &matrix(1.0), 10, "1"),
            request("optimal", &matrix(2.0), 10, "1"),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != one), "{all:?}");
        }
    }
}
