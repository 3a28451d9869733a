//! `hushflow init` of streams of people and devices: the proposed unit, its limits, and the steps
//! to a run.

use super::{FLAGS, answered, init, lab};
use crate::harness::{Lab, finish, hushflow};

/// Aircraft fly nearly every day. By default each counts in every epoch, so all epochs are
/// published. With a lower limit, `init` states the epoch after which a run stops, and the run
/// stops there.
#[test]
fn entities_count_in_every_epoch_unless_the_operator_wants_less() {
    let lab = lab();
    let aircraft = |name: &str, more: &[&str]| {
        let flags = [&FLAGS[..], &["--unit", "tailnum", "--output", name], more].concat();
        (init(&lab, &flags).succeeded().err, lab.path(name))
    };
    let (said, usual) = aircraft("usual.toml", &[]);
    assert!(said.contains("may count in all 32 epochs (--participations 32). That takes "), "{said}");
    assert!(said.contains("in only one of them (--participations 1). PRIVATE: "), "{said}");
    let text = std::fs::read_to_string(&usual).expect("the file");
    assert!(text.contains("participations = 32"), "{text}");
    finish(hushflow(["check"]).arg(&usual)).succeeded();
    finish(hushflow(["plan", "--records-per-epoch", "100", "--strategy", "identity"]).arg(&usual))
        .succeeded();
    let ended = finish(hushflow(["run", "--json"]).arg(&usual)).succeeded();
    assert_eq!(ended.json().len(), 96);
    let tailed = finish(hushflow(["tail", "--json"]).arg(lab.path("usual-state"))).succeeded();
    assert_eq!(tailed.json().len(), 96);
    let (said, few) = aircraft("few.toml", &["--participations", "5"]);
    let last = said.split("A run would stop after ").nth(1).and_then(|rest| rest.split(' ').next());
    let last: u64 = last.and_then(|last| last.parse().ok()).expect("the last epoch");
    let ended = finish(hushflow(["run", "--json"]).arg(&few));
    assert!(ended.code == Some(1) && (1..32).contains(&last), "{said}");
    assert_eq!(ended.json().len() as u64, 3 * last);
}

/// The command in a message of `init`, as arguments.
fn command_of(said: &str) -> Vec<String> {
    let command = said.split("hushflow init ").nth(1).expect("a command");
    let lines = command.split_inclusive('\n').scan(true, |continues, line| {
        let shown = std::mem::replace(continues, line.ends_with("\\\n"));
        shown.then(|| line.trim_end_matches("\\\n"))
    });
    lines.flat_map(|line| line.split_whitespace().map(String::from).collect::<Vec<_>>()).collect()
}

/// Users with several records in each epoch, some of whom use up their epochs early. The command
/// that `init` prints and the default answers to all questions both make a pipeline that runs.
#[test]
fn streams_of_entities_get_from_init_to_run() {
    let lab = Lab::new();
    // Each user has 5 records a day, or 300, or one user in ten comes on each of twenty days.
    let rows = |each: u32, comes: &dyn Fn(u32, u32) -> bool| {
        let mut text = String::from("at,user,ms\n");
        for day in 1..=20 {
            for user in (0..40).filter(|&user| comes(user, day)) {
                (0..each).for_each(|row| text += &format!("2024-01-{day:02},u{user},{}\n", row * 7 % 90));
            }
        }
        text
    };
    for (name, text, average) in [
        ("usual", rows(5, &|_, _| true), false),
        ("heavy", rows(300, &|user, _| user < 10), true),
        ("waning", rows(4, &|user, day| user < 30 || day % 10 == user % 10), false),
    ] {
        let file = format!("{name}.csv");
        lab.write(&file, text);
        let init = |arguments: &[String]| {
            finish(hushflow(["init"]).args(arguments).current_dir(lab.path("."))).succeeded().err
        };
        let asked = finish(hushflow(["init", &file, "--yes"]).current_dir(lab.path(".")));
        assert_eq!(asked.err.contains("--several average"), average, "{}", asked.err);
        let said = init(&command_of(&asked.err));
        assert!(said.contains(&format!("hushflow run {name}.toml")), "{said}");
        if average {
            // 10 users on 20 days: a forecast counts their means, not their records.
            assert!(
                said.contains("would count, as 200 means") && said.contains("--records-per-epoch 10 "),
                "{said}"
            );
        }
        let ended = answered(&lab, &format!("{file} --output {name}-asked.toml"), &"\n".repeat(30));
        ended.succeeded();
        for made in [format!("{name}.toml"), format!("{name}-asked.toml")] {
            finish(hushflow(["check"]).arg(lab.path(&made))).succeeded();
        }
        // With one record per entity, at most a fifth of the records count, so the run would stop.
        let few = command_of(&asked.err);
        let is_limit = |word: &str| ["--several", "--records-per-epoch", "--participations"].contains(&word);
        let mut flags: Vec<String> = Vec::new();
        let mut words = few.into_iter();
        while let Some(word) = words.next() {
            match is_limit(&word) {
                true => drop(words.next()),
                false => flags.push(word.replace(&format!("{name}.toml"), &format!("{name}-few.toml"))),
            }
        }
        let said = init(&flags);
        assert!(!said.contains("hushflow run") && said.contains("A run would stop"), "{said}");
        assert!(said.contains("--records-per-epoch") && said.contains("--participations"), "{said}");
        assert_eq!(said.contains("--several average"), average, "{said}");
        let checked = finish(hushflow(["check"]).arg(lab.path(&format!("{name}-few.toml"))));
        let problem = "PROBLEM (a run would stop): the limits of entities leave out most records";
        assert!(checked.code == Some(4) && checked.out.contains(problem), "{}", checked.out);
    }
    finish(hushflow(["run", "--quiet"]).arg(lab.path("usual.toml"))).succeeded();
}

/// A column with repeated values is proposed as the unit and not as the key, even if it has few
/// values.
#[test]
fn the_unit_is_asked_for_on_a_terminal() {
    let lab = Lab::new();
    let row = |row: u32| format!("P{:02},{},{}\n", row % 12, ["ward", "home"][row as usize % 2], row % 50);
    lab.write("rows.csv", format!("patient,place,x\n{}", (0..600).map(row).collect::<String>()));
    let budget = "--columns x:0:50 --epoch 60 --horizon 10 --epsilon 1 --delta 1e-6";
    for (answer, name, expected) in [("", "usual", "column = \"patient\""), ("record", "single", "[privacy]")]
    {
        // The key, its values, the unit, and its limits.
        let number = if answer.is_empty() { "keep\n\n5\n" } else { "" };
        let answers = format!("\n\n-\n{answer}\n{number}\n");
        let ended = answered(&lab, &format!("rows.csv {budget} --output {name}.toml"), &answers);
        let ended = ended.succeeded();
        let question = "\"patient\" may name a person or a device, and rows repeat its values.";
        let shown = ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(question) && shown.contains("[patient]:"), "{shown}");
        assert!(shown.contains("one group (place) [place]:"), "{shown}");
        let text = std::fs::read_to_string(lab.path(&format!("{name}.toml"))).expect("the file");
        assert!(text.contains(expected), "{text}");
        assert_eq!(text.contains("unit = \"entity\""), answer.is_empty(), "{text}");
    }
}

/// Customers have several rows each, so they are proposed as the unit. Numbers that identify are
/// not proposed as columns.
#[test]
fn a_unit_is_proposed_and_identifiers_are_left_out() {
    let lab = Lab::new();
    let row = |row: u32| {
        let (customer, hour) = (7000 + row * row % 90, row % 24);
        format!("{},{customer},2024-01-{:02}T{hour:02}:00:00Z,{}\n", 90_000 - 3 * row, 1 + row / 20, row % 50)
    };
    lab.write(
        "sales.csv",
        format!("order_no,customer,sold,amount\n{}", (0..600).map(row).collect::<String>()),
    );
    let init = |arguments: &[&str]| {
        finish(hushflow(["init", "sales.csv"]).args(arguments).current_dir(lab.path(".")))
    };
    let proposed = init(&["--yes"]);
    proposed.failed(
        2,
        &[
            "--columns amount:0:50",
            "--unit customer",
            "look like identifiers: order_no, customer",
            "--unit record",
        ],
    );
    let epochs = ["--start", "2024-01-01", "--epoch", "1d", "--horizon", "30"];
    let flags = [&["--columns", "amount:0:50", "--time", "sold"][..], &epochs].concat();
    let large = [&flags[..], &["--unit", "customer", "--epsilon", "1", "--delta", "0.2"]].concat();
    let warning = "warning: δ = 0.2 is large: it allows that everything about one record in 5 is revealed";
    let made = init(&large).succeeded();
    assert!(made.err.contains(warning), "{}", made.err);
    let pipeline = lab.path("sales.toml");
    for command in ["check", "plan", "run"] {
        let ended = finish(hushflow([command]).arg(&pipeline).current_dir(lab.path(".")));
        let printed = ended.out + &ended.err;
        assert!(printed.contains(warning.trim_start_matches("warning: ")), "{command}: {printed}");
    }
}
