//! `hushflow verify`: checks that a state directory is intact and its guarantee holds.

use std::path::PathBuf;

use clap::Args;
use hushflow::ledger::{LedgerError, standing};
use hushflow::publication::Publication;
use hushflow::runtime::{followed, journaled};
use hushflow::state::{
    Enrolment, PublicReader, StateError, StateSettings, is_public_alone, verify_followed, verify_ingest,
    verify_ingest_from, verify_public, verify_with,
};
use serde_json::json;

use super::CliError;
use super::output::{print_json, print_wrapped};

/// Arguments of `hushflow verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
verify checks:
- every checksum;
- that epochs and generations are consecutive, and that each release continues the hash chain;
- that the public log holds exactly what was committed;
- that the logs agree on their parameters;
- that the noise in use gives the stated guarantee;
- that the ingest journal and the lists of followed files hold what a restart reads next;
- that the ledger has an entry with this guarantee for this directory.
For a public log alone, it checks the log's checksums, order, chain and noise. verify changes nothing and prints no sums. \
It may run beside a run.")]
pub(crate) struct VerifyArguments {
    /// The state directory of a run, or a directory that holds only a public log
    directory: PathBuf,
    /// Directory of the public log: `public` in [state] of the pipeline file
    #[arg(long, value_name = "DIR")]
    public: Option<PathBuf>,
    /// Directory of the anchor to check against: `anchor` in [state] of the pipeline file
    #[arg(long, value_name = "DIR")]
    anchor: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Verifies and prints the findings; fails if there is a problem.
pub(crate) fn execute(arguments: &VerifyArguments) -> Result<(), CliError> {
    let path = &arguments.directory;
    if arguments.public.is_none() && arguments.anchor.is_none() && is_public_alone(path)? {
        return execute_public(arguments);
    }
    let ingest = verify_ingest(path)?;
    let settings = StateSettings {
        anchor: arguments.anchor.clone(),
        public: arguments.public.clone(),
        ..StateSettings::default()
    };
    let report = verify_with(path, &settings)?;
    let promise = promise(arguments);
    let entered = entered(arguments, report.committed);
    let unread_journal =
        journaled(&report.positions).map(|position| verify_ingest_from(path, position, &ingest));
    let gap = unread_journal.and_then(Result::err);
    let lists = verify_followed(path, &followed(&report.positions)).err();
    let problem = report.problem.as_ref().or(ingest.problem.as_ref()).or(gap.as_ref()).or(lists.as_ref());
    let problem = problem.map(StateError::to_string);
    let problem =
        problem.or_else(|| promise.as_ref().err().cloned()).or_else(|| entered.as_ref().err().cloned());
    let mut out = String::new();
    if arguments.json {
        let private = promise.as_ref().ok().map(|noise| noise.private);
        let secret_batches = promise.as_ref().ok().map(|noise| noise.secret_batches);
        let object = json!({
            "ok": problem.is_none(),
            "private": private,
            "secret_batches": secret_batches,
            "committed": report.committed,
            "published": report.published,
            "generations": report.generations,
            "chain": report.chain.to_string(),
            "sums_from": report.sums_from,
            "checkpoints": report.checkpoints,
            "uncommitted_bytes": report.uncommitted_bytes,
            "ledger_entry": entered.as_ref().ok().and_then(|entered| Some(entered.as_ref()?.0)),
            "ledger_entries": entered.as_ref().ok().and_then(|entered| Some(entered.as_ref()?.1)),
            "journal_sessions": ingest.sessions,
            "journal_bytes": ingest.bytes,
            "anchor_checked": arguments.anchor.is_some(),
            "problem": problem,
        });
        print_json(&object)?;
    } else {
        out += &format!("epochs committed   {}\n", report.committed);
        out += &format!("epochs published   {}\n", report.published);
        out += &format!("runs               {}\n", report.generations);
        out += &format!("head of the chain  {}\n", report.chain);
        out += &format!("sums kept from     epoch {}\n", report.sums_from);
        out += &format!("checkpoints at     {:?}\n", report.checkpoints);
        if report.uncommitted_bytes > 0 {
            out +=
                &format!("uncommitted bytes  {} (incomplete, or being written)\n", report.uncommitted_bytes);
        }
        if ingest.sessions > 0 {
            out += &format!("ingest journal     {} bytes of {} sessions\n", ingest.bytes, ingest.sessions);
        }
        if let Ok(noise) = promise {
            out += &format!("noise              {}\n", noise.text());
        }
        match (&arguments.anchor, &problem) {
            (None, _) => {
                out +=
                    "anchor             not checked: if there is one, name its directory with --anchor DIR\n"
            }
            (Some(_), None) => out += "anchor             agrees\n",
            (Some(_), Some(_)) => {}
        }
        match entered {
            Ok(Some((number, entries))) => {
                out += &format!("ledger             entry {number} of {entries}\n")
            }
            Ok(None) => out += "ledger             no entry: nothing was published\n",
            Err(_) => {}
        }
        out += &format!("{}\n", if problem.is_none() { "all is well" } else { "SOMETHING IS WRONG" });
    }
    print_wrapped(&out)?;
    problem.map_or(Ok(()), |problem| Err(CliError::failed(problem)))
}

/// Verifies a public log on its own.
fn execute_public(arguments: &VerifyArguments) -> Result<(), CliError> {
    let report = verify_public(&arguments.directory)?;
    let promise = promise(arguments);
    let problem = report.problem.as_ref().map(StateError::to_string);
    let problem = problem.or_else(|| promise.as_ref().err().cloned());
    let mut out = String::new();
    if arguments.json {
        let object = json!({
            "ok": problem.is_none(),
            "private": promise.as_ref().ok().map(|noise| noise.private),
            "secret_batches": promise.as_ref().ok().map(|noise| noise.secret_batches),
            "committed": null,
            "published": report.published,
            "generations": report.generation,
            "chain": report.chain.to_string(),
            "problem": problem,
        });
        print_json(&object)?;
    } else {
        out += &format!("epochs published   {}\n", report.published);
        out += &format!("runs               {}\n", report.generation);
        out += &format!("head of the chain  {}\n", report.chain);
        if let Ok(noise) = promise {
            out += &format!("noise              {}\n", noise.text());
        }
        out += &format!(
            "{}\n",
            if problem.is_none() { "all is well with the public log" } else { "SOMETHING IS WRONG" }
        );
    }
    print_wrapped(&out)?;
    problem.map_or(Ok(()), |problem| Err(CliError::failed(problem)))
}

/// What is known about the noise.
#[derive(Clone, Copy)]
struct NoiseFinding {
    private: bool,
    /// Whether the guarantee relies on batches that are secret.
    secret_batches: bool,
}

impl NoiseFinding {
    fn text(self) -> &'static str {
        match (self.private, self.secret_batches) {
            (false, _) => "was drawn from a seed: NOT PRIVATE",
            (true, false) => "gives the stated guarantee",
            (true, true) => {
                "gives the stated guarantee while the random batches are secret, for those who can't time the steps"
            }
        }
    }
}

/// Returns the publication described by the header of the public log.
fn published(arguments: &VerifyArguments) -> Result<Publication, CliError> {
    let reader = PublicReader::open(arguments.public.as_ref().unwrap_or(&arguments.directory))?;
    Ok(Publication::from_header(reader.header())?)
}

/// Returns what is known about the noise, or why the guarantee of the log does not hold.
fn promise(arguments: &VerifyArguments) -> Result<NoiseFinding, String> {
    let publication = published(arguments).map_err(|error| error.to_string())?;
    match publication.guarantee_holds() {
        Ok(true) => {
            let training = publication.parameters().training.as_ref();
            let secret_batches = training.is_some_and(|training| !training.sampling.is_public());
            Ok(NoiseFinding { private: publication.is_private(), secret_batches })
        }
        Ok(false) => Err("the noise multiplier in the header is too small for the stated (ε, δ)".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the number of the ledger entry that pays for the releases and the number of entries,
/// `None` if nothing was published, or why there is no entry.
fn entered(arguments: &VerifyArguments, committed: u64) -> Result<Option<(usize, usize)>, String> {
    let path = &arguments.directory;
    let publication = published(arguments).map_err(|error| error.to_string())?;
    let charge = publication.charge().map_err(|error| error.to_string())?;
    let enrolment = Enrolment::of(path).map_err(|error| error.to_string())?;
    let Some(enrolment) = enrolment.filter(|enrolment| enrolment.has_begun()) else {
        let missing = LedgerError::NotEntered { path: path.clone() };
        return if committed == 0 { Ok(None) } else { Err(missing.to_string()) };
    };
    let standing = standing(&path.join(enrolment.ledger()), &enrolment, &charge);
    standing.map(Some).map_err(|error| error.to_string())
}
