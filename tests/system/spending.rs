//! When and where a ledger is charged, and for which unit: failed runs are free, releases are not,
//! holders of copies pay, and entities of different kinds are unrelated unless a file declares a
//! relation.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{self, await_until, close, finish, hushflow, releases, run, wait};
use crate::ledger::{BUDGET, Data, STREAM, command, entries, ledger};

/// Kills before the first release cost nothing, however often: a run's reservation ends with it.
#[test]
fn a_run_that_is_killed_before_its_first_release_has_paid_nothing() {
    let data = Data::new();
    let waiting = data.pipeline("killed", BUDGET, ("path = 'data.csv'", "path = '-'"));
    let state = data.state("killed");
    let reserved = || {
        let names = std::fs::read_dir(data.state("shared")).into_iter().flatten().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with("reserved-")).count()
    };
    for _ in 0..3 {
        let mut child = run(&waiting, &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
        let _input = child.stdin.take().expect("a pipe");
        await_until("the run is under way", || state.join(harness::PRIVATE_LOG).exists());
        assert_eq!(reserved(), 1);
        child.kill().expect("a child can be killed");
        wait(child);
        assert_eq!(reserved(), 1, "a killed run can't tidy up");
        finish(&mut command("ledger", &data.state("shared"))).failed(1, &["there is no ledger here"]);
        assert_eq!(releases(&state).len(), 0);
    }
    // Other runs can use all the budget that killed runs had reserved.
    data.run(&data.shared("second")).succeeded();
    data.run(&data.shared("third")).succeeded();
    assert_eq!((entries(&data.ledger()), reserved()), (vec!["second", "third"], 0));
    data.run(&waiting).failed(1, &["the budget of this data set"]);
}

/// One budget, three runs at a time: the third is refused at once, though no run has paid yet.
#[test]
fn room_is_reserved_while_a_run_lives() {
    let data = Data::new();
    let waiting = |name: &str| data.pipeline(name, BUDGET, ("path = 'data.csv'", "path = '-'"));
    let children = ["first", "second"].map(|name| {
        let state = data.state(name);
        let child = run(&waiting(name), &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
        await_until("the run is under way", || state.join(harness::PRIVATE_LOG).exists());
        child
    });
    data.run(&data.shared("third"))
        .failed(1, &["2 entries (2 reserved by runs under way) have spent ε = 1.45"]);
    for mut child in children {
        child.kill().expect("a child can be killed");
        wait(child);
    }
    data.run(&data.shared("third")).succeeded();
    assert_eq!(entries(&data.ledger()), ["third"]);
}

/// Errors in the file or the pipeline are free, and the corrected pipeline continues in the same
/// state directory.
#[test]
fn a_run_that_fails_before_it_publishes_has_spent_nothing() {
    let data = Data::new();
    let tight = BUDGET.replace("1.5", "1.1");
    let mut gzip = vec![0x1f, 0x8b, 8, 0];
    gzip.extend(STREAM.csv().as_bytes());
    data.0.write("packed.csv", gzip);
    let first_column = "name = 'a'";
    let wrong = [
        ((first_column, "name = 'b_misspelt'"), "none of the"),
        (("'data.csv'", "'missing.csv'"), "missing.csv: can't be read"),
        (("'data.csv'", "['data.csv', 'missing.csv']"), "missing.csv: can't be read"),
        (("'data.csv'", "'packed.csv'"), "the gzip data can't be unpacked any further at byte 15"),
        (
            ("start = '2020", "start = '2019"),
            "data.csv:2: many rows in a row are further ahead of start in [epochs]",
        ),
    ];
    for (change, message) in wrong {
        data.run(&data.pipeline("first", &tight, change)).failed(1, &[message]);
        finish(&mut command("ledger", &data.state("shared"))).failed(1, &["there is no ledger here"]);
    }
    data.run(&data.pipeline("first", &tight, ("", ""))).succeeded();
    assert_eq!(entries(&data.ledger()), ["first"]);
    finish(&mut command("verify", &data.state("first"))).succeeded();

    // After the first release the charge is final: other parameters need another directory.
    data.run(&data.pipeline("first", &tight, (first_column, "name = 'b_misspelt'"))).failed(1, &["other"]);
    assert_eq!(entries(&data.ledger()), ["first"]);
    data.run(&data.pipeline("second", &tight, ("", ""))).failed(1, &["the budget of this data set"]);
}

/// A copy made before the first release has no identity yet, and pays for itself. A later copy
/// relies on the entry of its original, which is never taken back.
#[test]
fn copies_and_deleted_directories_give_nothing_back() {
    let data = Data::new();
    let pipeline = data.pipeline("first", BUDGET, ("path = 'data.csv'", "path = '-'"));
    let mut child =
        run(&pipeline, &data.state("first"), 1).stdin(Stdio::piped()).spawn().expect("the run starts");
    await_until("the run is under way", || data.state("first").join(harness::PRIVATE_LOG).exists());
    let copied = Command::new("cp").arg("-a").args([data.state("first"), data.state("copy")]).status();
    assert!(copied.expect("cp").success());
    child.kill().expect("a child can be killed");
    wait(child);
    for name in ["first", "copy"] {
        let csv = std::fs::File::open(data.state("data.csv")).expect("the data");
        finish(run(&pipeline, &data.state(name), 1).stdin(csv)).succeeded();
    }
    assert_eq!(entries(&data.ledger()), ["first", "first"]);
    std::fs::remove_dir_all(data.state("first")).expect("a directory");
    data.run(&data.shared("second")).failed(1, &["the budget of this data set"]);
    assert_eq!(entries(&data.ledger()).len(), 2);
}

/// One directory for the ledgers of all data, named in the environment or in the user's
/// configuration.
#[test]
fn one_setting_names_the_directory_of_all_ledgers() {
    let data = Data::new();
    let named = |name: &str| data.pipeline(name, "[ledger]\ndata_set = 'stream'\n", ("", ""));
    let all = data.state("all");
    let by_variable = |pipeline: &Path| {
        let state = data.state(pipeline.file_stem().expect("a name").to_str().expect("UTF-8"));
        finish(run(pipeline, &state, 1).env("HUSHFLOW_LEDGER", &all))
    };
    let ended = by_variable(&named("first")).succeeded();
    assert!(!ended.err.contains("note: no ledger"), "{}", ended.err);
    std::fs::create_dir_all(data.state("config/hushflow")).expect("a directory");
    data.0.write("config/hushflow/config.toml", "ledger = '../../all'");
    let second =
        finish(run(&named("second"), &data.state("second"), 1).env("XDG_CONFIG_HOME", data.state("config")));
    assert!(!second.succeeded().err.contains("note: no ledger"));
    let report = ledger(&all.join("stream"), &[]);
    assert_eq!((entries(&report), &report["data_set"]), (vec!["first", "second"], &"stream".into()));

    // The data must have a name. A directory that has published keeps its ledger.
    by_variable(&data.pipeline("unnamed", "", ("", ""))).failed(1, &["which data these are", "data_set"]);
    data.run(&named("first")).succeeded();
    let alone = data.run(&data.pipeline("alone", "", ("", ""))).succeeded();
    assert!(alone.err.contains("note: no ledger counts this"), "{}", alone.err);
    by_variable(&data.pipeline("alone", "", ("", ""))).succeeded();
    assert_eq!(entries(&ledger(&all.join("stream"), &[])).len(), 2);
    let broken = data.0.write("config/hushflow/config.toml", "ledgers = 'all'");
    let ended =
        finish(run(&named("third"), &data.state("third"), 1).env("XDG_CONFIG_HOME", data.state("config")));
    ended.failed(2, &[broken.to_str().expect("UTF-8"), "expected ledger = \"DIR\""]);
}

/// An estimate is charged to the ledger of its data, by name; no entry contains a path.
#[test]
fn estimates_are_named_by_their_data_and_not_by_a_path() {
    let data = Data::new();
    data.run(&data.shared("first")).succeeded();
    let estimate = |more: &[&str]| {
        let mut command = hushflow(["covariance", "--columns", "a,b", "--bounds=-10:10", "--rho", "0.01"]);
        command.arg(data.state("data.csv")).args(more);
        command
    };
    let shared = data.state("shared");
    let unnamed = ["--ledger", shared.to_str().expect("UTF-8")];
    let to_shared = [&unnamed[..], &["--data-set", "stream"]].concat();
    finish(&mut estimate(&unnamed)).failed(2, &["--data-set <NAME>"]);
    finish(&mut estimate(&to_shared)).failed(1, &["counts were released exactly"]);
    ledger(&shared, &["--budget", "1.5,1e-6", "--neighbours", "replace-one-in-place"]);
    let ended = finish(&mut estimate(&to_shared)).succeeded();
    assert!(!ended.err.contains("note: no ledger"), "{}", ended.err);
    finish(&mut estimate(&[&unnamed[..], &["--data-set", "weather"]].concat()))
        .failed(1, &["is that of the data set \"stream\", not of \"weather\""]);
    assert!(finish(&mut estimate(&[])).succeeded().err.contains("note: no ledger counts this"));
    finish(estimate(&[]).env("HUSHFLOW_LEDGER", data.state("all"))).failed(2, &["--data-set"]);
    finish(estimate(&["--data-set", "../x"]).env("HUSHFLOW_LEDGER", data.state("all")))
        .failed(2, &["a name of letters"]);
    let report = data.ledger();
    assert_eq!(entries(&report), ["first", "covariance"]);
    let mut public = report.clone();
    public.as_object_mut().expect("an object").remove("directory");
    let lab = data.state("").display().to_string();
    assert!(
        !public.to_string().contains(lab.trim_end_matches('/')) && !public.to_string().contains(".csv"),
        "{public}"
    );
}

/// A pipeline about all records of a user or of a device; each device belongs to one user.
fn about_entities(data: &Data, name: &str, entity: &str, neighbours: &str, more: &str) -> PathBuf {
    let mut text = String::new();
    for (row, line) in STREAM.csv().lines().enumerate() {
        let _ = match row {
            0 => writeln!(text, "{line},user,device"),
            _ => writeln!(text, "{line},u{},d{}", row % 20, row % 60),
        };
    }
    data.0.write("people.csv", text);
    let section = format!(
        "[entity]\nparticipations = 2\n{entity}\n[privacy]\nunit = 'entity'\nneighbours = '{neighbours}'\n"
    );
    let text =
        std::fs::read_to_string(data.pipeline(name, more, ("data.csv", "people.csv"))).expect("a file");
    data.0.write(&format!("{name}.toml"), text.replacen("[privacy]\n", &section, 1))
}

const OPEN: &str = "[ledger]\ndirectory = 'shared'\ndata_set = 'stream'\n";
const SIGMA: f64 = 4.224_678_9;

/// Replacing a row of an entity counts as two zero-out steps, and as four if the new row may belong
/// to another entity. A single pipeline of (1, 1e-6) then exceeds a budget of 1.5 about records.
#[test]
fn a_guarantee_for_entities_charges_more_than_one_for_records() {
    let data = Data::new();
    let tight = format!("{OPEN}budget = {{ epsilon = 1.5, delta = 1e-6, unit = 'record' }}\n");
    let parts = ["0 entries have spent ε = 0.0", "ε would be 2."];
    data.run(&about_entities(&data, "tight", "column = 'user'", "zero-out", &tight)).failed(1, &parts);

    data.run(&about_entities(&data, "users", "column = 'user'", "zero-out", OPEN)).succeeded();
    data.run(&data.pipeline("records", OPEN, ("clip_norm", "neighbours = 'zero-out'\nclip_norm")))
        .succeeded();
    let about = |neighbours: &str| {
        let report = ledger(&data.state("shared"), &["--neighbours", neighbours]);
        assert_eq!(report["composition"]["unit"], "record");
        harness::number(&report["composition"]["mu"]) * SIGMA
    };
    assert!((about("zero-out") - 5_f64.sqrt()).abs() < 1e-5, "{}", about("zero-out"));
    assert!((about("replace-one") - 20_f64.sqrt()).abs() < 1e-5, "{}", about("replace-one"));
    let users = ledger(&data.state("shared"), &["--unit", "user"]);
    let problem = users["problem"].as_str().expect("no promise about users");
    assert!(
        problem.contains("\"records\"") && problem.contains("a user may have any number of records"),
        "{problem}"
    );
}

#[test]
fn entities_of_different_kinds_share_no_budget_unless_one_lies_within_the_other() {
    let data = Data::new();
    let budget = format!("{OPEN}budget = {{ epsilon = 4, delta = 1e-6, entity = 'device' }}\n");
    let pipeline_of = |name: &str, entity: &str| about_entities(&data, name, entity, "replace-one", &budget);
    data.run(&pipeline_of("devices", "column = 'device'")).succeeded();
    let parts =
        ["pipeline \"users\"", "nothing says that each device lies within one user", "within = [\"user\"]"];
    data.run(&pipeline_of("users", "column = 'user'")).failed(1, &parts);
    // The same column under another name is another kind, and another column under the same name is
    // the same kind.
    data.run(&pipeline_of("renamed", "column = 'device'\nkind = 'phone'"))
        .failed(1, &["each device lies within one phone"]);

    data.run(&pipeline_of("nested", "column = 'device'\nwithin = ['user']")).succeeded();
    data.run(&pipeline_of("users", "column = 'user'")).succeeded();
    let report = data.ledger();
    assert_eq!(entries(&report), ["devices", "nested", "users"]);
    assert_eq!(
        (&report["entries"][1]["entity"], &report["entries"][1]["within"][0]),
        (&"device".into(), &"user".into())
    );
    assert_eq!(
        (&report["budget"]["unit"], &report["budget"]["entity"]),
        (&"entity".into(), &"device".into())
    );
    close("μ about devices", &report["composition"]["mu"], 6_f64.sqrt() / SIGMA, 1e-6);
    let users = ledger(&data.state("shared"), &["--unit", "user"]);
    assert!(
        users["problem"].as_str().is_some_and(|why| why.contains("any number of device entities")),
        "{users}"
    );
    finish(&mut command("verify", &data.state("users"))).succeeded();
    data.run(&pipeline_of("wrong", "column = 'user'\nwithin = ['user']")).failed(2, &["only larger kinds"]);
}
