//! Charges a single estimate to a ledger, or prints a note if there is none.

use std::io::{Write, stderr};
use std::path::PathBuf;

use clap::Args;
use hushflow::ledger::{Charge, LedgerHome, data_set_name, enter_once};

use super::CliError;

/// Arguments that select the ledger of an estimate.
#[derive(Debug, Args)]
pub(crate) struct ChargeArguments {
    /// Charge the ledger in this directory before printing [default: the ledger of --data-set in
    /// the directory named by HUSHFLOW_LEDGER or the user's configuration]
    #[arg(long, value_name = "DIR", requires = "data_set")]
    ledger: Option<PathBuf>,
    /// Name of the data set in ledgers, such as flights
    #[arg(long, value_name = "NAME", value_parser = data_set_name)]
    data_set: Option<String>,
}

impl ChargeArguments {
    /// Returns the directory of the ledger, or prints a note where there is none. Call it before
    /// the data are read.
    ///
    /// A charge covers neighbours that replace any row by any other. If rows with missing values
    /// are left out, the output depends on the exact number of complete rows, which distinguishes
    /// neighbours: this is refused, and `instead` names the option that keeps all rows.
    pub(crate) fn ledger(&self, skips: bool, instead: &str) -> Result<Option<PathBuf>, CliError> {
        let ledger = self.found()?;
        match ledger {
            Some(ledger) if skips => Err(CliError::usage(format!(
                "--missing skip leaves rows out and so reveals the exact number of complete rows, which a charge to the ledger in {} \
                 does not cover: use --missing {instead}, which counts all rows",
                ledger.display()
            ))),
            ledger => Ok(ledger),
        }
    }

    fn found(&self) -> Result<Option<PathBuf>, CliError> {
        if self.ledger.is_some() {
            return Ok(self.ledger.clone());
        }
        if let Some(home) = LedgerHome::find()? {
            return Ok(Some(home.of_data(self.data_set.as_deref())?));
        }
        say_alone("--ledger DIR");
        Ok(None)
    }

    /// Charges the estimate to the ledger, if there is one.
    pub(crate) fn enter(&self, ledger: Option<&PathBuf>, charge: Charge) -> Result<(), CliError> {
        ledger.map_or(Ok(()), |ledger| Ok(enter_once(ledger, charge, self.data_set.clone())?))
    }
}

/// Prints a note that no ledger counts this release; `how` is the option that names a ledger for
/// this command.
pub(crate) fn say_alone(how: &str) {
    let _ = writeln!(
        stderr(),
        "note: no ledger counts this together with other releases of the same data: name one with {how}, or for all runs with \
         HUSHFLOW_LEDGER=DIR or ledger = \"DIR\" in ~/.config/hushflow/config.toml"
    );
}
