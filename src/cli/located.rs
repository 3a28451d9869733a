//! The public log that a command reads: named by its directory, or by the pipeline file that writes
//! it.

use std::path::{Path, PathBuf};

use clap::Args;
use hushflow::estimates::EstimateView;
use hushflow::follow::Subject;
use hushflow::pipeline::{Pipeline, PublicParameters, Sink};

use super::CliError;

/// Arguments that name a public log.
#[derive(Debug, Args)]
pub(super) struct LogArguments {
    /// State directory of a run, a directory with a copy of its public.log, or the pipeline file,
    /// whose [[views]] then have their names
    #[arg(value_name = "DIRECTORY|FILE")]
    source: PathBuf,
    /// State directory of the pipeline; overrides the one in its file
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Directory of the public log; overrides the one in the pipeline file
    #[arg(long, value_name = "DIR")]
    public: Option<PathBuf>,
}

/// A public log, with the parameters, views and sinks of the pipeline file that named it.
pub(super) struct LocatedLog {
    pub(super) directory: PathBuf,
    file: PathBuf,
    /// Parameters that the log must have.
    parameters: Option<PublicParameters>,
    pub(super) views: Vec<EstimateView>,
    pub(super) sinks: Vec<Sink>,
}

impl LogArguments {
    /// Locates the log. Its directory may not exist yet.
    pub(super) fn locate(&self) -> Result<LocatedLog, CliError> {
        let file = self.source.clone();
        // A reader may start before the run that creates the directory.
        let is_awaited = !file.exists() && file.extension().is_none_or(|extension| extension != "toml");
        if file.is_dir() || is_awaited {
            let flags = [("--state", self.state.is_some()), ("--public", self.public.is_some())];
            if let Some((flag, _)) = flags.into_iter().find(|(_, is_given)| *is_given) {
                return Err(CliError::usage(format!(
                    "{flag} locates the log of a pipeline file, but the argument is a directory: leave it out",
                )));
            }
            let directory = file.clone();
            return Ok(LocatedLog { directory, file, parameters: None, views: vec![], sinks: vec![] });
        }
        let pipeline = Pipeline::load(&file)?;
        let public = self.public.clone().or_else(|| pipeline.state.public.clone());
        let state = self.state.clone().or_else(|| pipeline.state_directory.clone());
        let directory = public.or(state).ok_or_else(|| {
            CliError::usage(
                "no public log: name its directory with --public DIR, or in the pipeline file:\n\n[state]\npublic = \"public\"",
            )
        })?;
        let parameters = Some(pipeline.public_parameters());
        Ok(LocatedLog { directory, file, parameters, views: pipeline.views, sinks: pipeline.sinks })
    }
}

impl LocatedLog {
    /// Returns the pipeline file that named the log.
    pub(super) fn file(&self) -> Option<&Path> {
        self.parameters.is_some().then_some(&self.file)
    }

    /// Checks that the log has the parameters of the pipeline file.
    pub(super) fn check(&self, subject: &Subject) -> Result<(), CliError> {
        match &self.parameters {
            Some(parameters) if parameters != subject.parameters() => Err(CliError::usage(format!(
                "{}: the log in {} has other parameters: read it with the pipeline file that created it",
                self.file.display(),
                self.directory.display()
            ))),
            _ => Ok(()),
        }
    }
}
