//! Which ledger pays for an estimate that is printed once, and what is said where none does.

use std::io::{Write, stderr};
use std::path::PathBuf;

use clap::Args;
use hushflow::ledger::{Charge, Home, data_set_name, enter_once};

use super::CliError;

/// Where an estimate is charged.
#[derive(Debug, Args)]
pub(crate) struct ChargeArguments {
    /// Charge the ledger in this directory before anything is printed [default: that of --data-set in the directory
    /// that HUSHFLOW_LEDGER or the user's configuration names]
    #[arg(long, value_name = "DIR", requires = "data_set")]
    ledger: Option<PathBuf>,
    /// The name of the data in ledgers, such as flights
    #[arg(long, value_name = "NAME", value_parser = data_set_name)]
    data_set: Option<String>,
}

impl ChargeArguments {
    /// The directory of the ledger. Says so where there is none. To be called before the data are read.
    ///
    /// A ledger is charged for rows that may turn into any others. Where some are left out, the number of those that stay is
    /// exact, and neighbours are told apart by it: that is refused, and `instead` says what keeps all rows.
    pub(crate) fn ledger(&self, skips: bool, instead: &str) -> Result<Option<PathBuf>, CliError> {
        let ledger = self.found()?;
        match ledger {
            Some(ledger) if skips => Err(CliError::usage(format!(
                "--missing skip leaves rows out, so the exact number of complete rows is seen, for which the ledger in {} \
                 has no charge: use --missing {instead}, which counts all rows",
                ledger.display()
            ))),
            ledger => Ok(ledger),
        }
    }

    fn found(&self) -> Result<Option<PathBuf>, CliError> {
        if self.ledger.is_some() {
            return Ok(self.ledger.clone());
        }
        if let Some(home) = Home::find()? {
            return Ok(Some(home.of_data(self.data_set.as_deref())?));
        }
        say_alone("--ledger DIR");
        Ok(None)
    }

    /// Enters the estimate, if there is a ledger.
    pub(crate) fn enter(&self, ledger: Option<&PathBuf>, charge: Charge) -> Result<(), CliError> {
        ledger.map_or(Ok(()), |ledger| Ok(enter_once(ledger, charge, self.data_set.clone())?))
    }
}

/// Says that what is released adds up with nothing else; `how` names a ledger for this command.
pub(crate) fn say_alone(how: &str) {
    let _ = writeln!(
        stderr(),
        "note: no ledger adds this up with other releases of the same data: name one with {how}, or for all runs with \
         HUSHFLOW_LEDGER=DIR or ledger = \"DIR\" in ~/.config/hushflow/config.toml"
    );
}
