//! Tables on terminals of several widths, and files for shells and manual readers.
//!
//! `script` (util-linux) gives a command a pseudo-terminal.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Ended, Lab, finish, hushflow, run};

const COLUMNS: [&str; 6] = ["age", "height", "weight", "income", "debt", "distance"];

/// A log of two epochs with six columns and a long key.
fn published(lab: &Lab) -> std::path::PathBuf {
    let rows: String = (0..400u32)
        .map(|row| {
            let values = (0..6).map(|column| f64::from((row * (column + 3)) % 89) / 89.0);
            let key = if row % 2 == 0 { "north" } else { "the long name of a place in the south-west" };
            format!("{key},{}\n", values.map(|value| value.to_string()).collect::<Vec<_>>().join(","))
        })
        .collect();
    lab.write("data.csv", format!("site,{}\n{rows}", COLUMNS.join(",")));
    let columns = COLUMNS.map(|name| format!("{{ name = '{name}', lower = 0, upper = 1 }}")).join(", ");
    let pipeline = lab.write(
        "pipeline.toml",
        format!(
            "name = 'n'\nsource.path = 'data.csv'\ncolumns = [{columns}]\n\
             key = {{ column = 'site', values = ['north', 'the long name of a place in the south-west'] }}\n\
             privacy = {{ epsilon = 8, delta = 1e-6 }}\nepochs = {{ records = 200, horizon = 2 }}\n"
        ),
    );
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    state
}

/// A log of two days with two columns, and the same keys.
fn published_by_day(lab: &Lab) -> std::path::PathBuf {
    let rows = (0..400).map(|row| {
        let key = if row % 2 == 0 { "north" } else { "the long name of a place in the south-west" };
        format!(
            "2020-01-0{},{key},{},{}\n",
            1 + row / 200,
            f64::from(row % 89) / 89.0,
            f64::from(row % 7) / 7.0
        )
    });
    lab.write("days.csv", format!("day,site,age,height\n{}", rows.collect::<String>()));
    let pipeline = lab.write(
        "days.toml",
        "name = 'n'\nsource.path = 'days.csv'\n\
         columns = [{ name = 'age', lower = 0, upper = 1 }, { name = 'height', lower = 0, upper = 1 }]\n\
         key = { column = 'site', values = ['north', 'the long name of a place in the south-west'] }\n\
         privacy = { epsilon = 8, delta = 1e-6 }\n\
         epochs = { time = 'day', clock = 'end-of-input', start = '2020-01-01', length = '1d', horizon = 2 }\n",
    );
    let state = lab.path("days-state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    state
}

/// Runs `hushflow tail` on a terminal of this width and returns the lines on it.
fn on_terminal(state: &Path, width: usize, arguments: &str) -> Vec<String> {
    printed(width, &format!("tail {} {arguments}", state.display()))
}

/// Runs a command on a terminal of this width and returns the lines on it, those of standard error
/// too.
fn printed(width: usize, arguments: &str) -> Vec<String> {
    let shell = format!("stty cols {width} rows 50; exec {} {arguments}", env!("CARGO_BIN_EXE_hushflow"));
    let mut command = Command::new("script");
    command.args(["-qec", &shell, "/dev/null"]).stdin(Stdio::null());
    command.env("TERM", "xterm").env_remove("NO_COLOR").env("SHELL", "/bin/sh");
    let output = command.output().expect("util-linux is installed");
    let text = String::from_utf8(output.stdout).expect("output is UTF-8");
    text.lines().map(|line| line.trim_end_matches('\r').to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Removes the colours.
fn plain(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[test]
fn check_has_colours_on_a_terminal() {
    let lab = Lab::new();
    lab.write("rows.csv", "x\n1\n2\n3\n");
    let pipeline = |upper: u32| {
        let text = format!(
            "name = 'rows'\nsource.path = 'rows.csv'\ncolumns = [{{ name = 'x', lower = 0, upper = {upper} }}]\n\
             epochs = {{ records = 1, horizon = 3 }}\nprivacy = {{ epsilon = 1, delta = 1e-6 }}\n"
        );
        lab.write(&format!("{upper}.toml"), text).display().to_string()
    };
    let check = |upper, more: &str| printed(40, &format!("check {} {more}", pipeline(upper))).join("\n");
    let good = check(4, "");
    assert!(good.contains("\x1b[32mNo problems:\x1b[0m") && good.contains("\x1b[1m"), "{good:?}");
    assert!(check(1, "").contains("\x1b[33mPROBLEM"));
    assert!(!check(1, "--color never").contains("\x1b[33m"));
    let piped = |more: &[&str]| finish(hushflow(["check", &pipeline(1)]).args(more)).out;
    assert!(!piped(&[]).contains('\x1b') && piped(&["--color", "always"]).contains("\x1b[33mPROBLEM"));
}

#[test]
fn a_table_fits_terminals_of_several_widths() {
    let lab = Lab::new();
    let state = published(&lab);
    for width in [40, 60, 80, 100, 132, 200] {
        for arguments in ["", "--follow"] {
            let lines = on_terminal(&state, width, arguments);
            assert!(lines.len() >= 4, "{lines:?}");
            for line in &lines {
                assert!(plain(line).chars().count() < width, "{width} {arguments}: {line:?}");
            }
            assert!(lines.iter().any(|line| plain(line).contains("mean age")), "{lines:?}");
        }
    }
    // On the narrowest terminal a long key gets its width before the times of epochs do.
    let timed = published_by_day(&lab);
    for width in [40, 80, 132] {
        let lines = on_terminal(&timed, width, "");
        assert!(lines.iter().all(|line| plain(line).chars().count() < width), "{width}: {lines:?}");
        assert_eq!(lines.iter().any(|line| line.contains("2020-01-01")), width >= 80, "{lines:?}");
    }
    let narrow = on_terminal(&state, 80, "").join("\n");
    assert!(narrow.contains("more cells: choose with --columns"), "{narrow}");
    assert!(!on_terminal(&state, 700, "").join("\n").contains("more cells"));
}

/// No command prints a line that is wider than the terminal, except for paths and commands to copy.
#[test]
fn every_command_fits_terminals_of_several_widths() {
    let lab = Lab::new();
    let state = published(&lab).display().to_string();
    let [pipeline, data, again] =
        ["pipeline.toml", "data.csv", "again"].map(|name| lab.path(name).display().to_string());
    let bad = lab.path("bad.toml").display().to_string();
    let text = std::fs::read_to_string(&pipeline).expect("the pipeline");
    let jumping = text.replace("data.csv", "jump.csv").replace(
        "epochs = { records = 200, horizon = 2 }",
        "epochs = { time = 't', arrival = 't', start = '2020-01-01', length = '1d', horizon = 9 }",
    );
    lab.write("bad.toml", jumping);
    let rows = std::fs::read_to_string(&data).expect("the data");
    let mut rows = rows.lines().take(30).enumerate().map(|(row, line)| match row {
        0 => format!("t,{line}\n"),
        20 => format!("2031-01-01,{line}\n"),
        row => format!("2020-01-{:02},{line}\n", 1 + row / 5),
    });
    lab.write("jump.csv", rows.by_ref().collect::<String>());
    let estimate = "--columns age,height,weight,income,debt,distance";
    let commands = [
        format!("run {pipeline} --state {again}-WIDTH --counters"),
        format!("run {pipeline} --state {again}-WIDTH --quiet"),
        format!("run {bad} --state {again}-bad-WIDTH"),
        format!("check {pipeline}"),
        format!("check {bad}"),
        format!("plan {pipeline}"),
        format!("plan {pipeline} --records-per-epoch 100"),
        format!("plan {pipeline} --strategy identity"),
        "plan --workload prefix --horizon 12".into(),
        format!("tail {state}"),
        format!("tail {state} --estimate moments"),
        format!("verify {state}"),
        format!("ledger {state}"),
        "calibrate --epsilon 1 --delta 1e-6".into(),
        "calibrate --events 1000*sampled-gaussian:1.1:0.01,pure:0.5 --delta 1e-5".into(),
        format!("covariance {data} {estimate} --bounds 0:1 --rho 0.5 --seed 1"),
        format!("covariance {data} {estimate} --bounds 0:1 --centre --method ssp --rho 0.5 --seed 1"),
        format!("mean {data} {estimate} --corruption 0 --epsilon 8 --delta 1e-6 --seed 1"),
        "reference epochs".into(),
        "help run".into(),
        "init --help".into(),
        "optimize --method coa --workload prefix --horizon 4".into(),
    ];
    let mut wide = Vec::new();
    for width in [60, 80] {
        for command in &commands {
            let command = command.replace("WIDTH", &width.to_string());
            let lines = printed(width, &command);
            assert!(!lines.is_empty(), "{command}");
            // A status line is drawn and cleared on a separate line.
            for line in lines.iter().flat_map(|line| line.split('\r')) {
                let is_path = line.split_whitespace().any(|word| word.starts_with('/') && word.len() > 20);
                let is_digest = line.trim().len() == 64 && !line.trim().contains(' ');
                let is_command = line.trim_start().starts_with("hushflow ");
                if plain(line).chars().count() > width && !is_path && !is_digest && !is_command {
                    wide.push(format!("{width}, {command}: {line:?}"));
                }
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
    // Rows that don't fit are lists of their cells, not broken lines.
    let check = printed(60, &format!("check {pipeline}")).join("\n");
    assert!(check.contains("  clipped below  0 %"), "{check}");
    let plan = printed(60, &format!("plan {pipeline} --records-per-epoch 100")).join("\n");
    assert!(plan.contains("  mean, epoch 1      ±"), "{plan}");
    let plan = printed(60, &format!("plan {pipeline}")).join("\n");
    assert!(plan.contains("loss") && !plan.contains("mean ±"), "{plan}");
}

#[test]
fn columns_are_chosen_and_colours_can_be_turned_off() {
    let lab = Lab::new();
    let state = published(&lab);
    let chosen = on_terminal(&state, 100, "--columns distance").join("\n");
    assert!(chosen.contains("mean distance") && chosen.contains("sd distance"), "{chosen}");
    assert!(!chosen.contains("mean age"), "{chosen}");
    assert!(chosen.contains("\x1b["), "{chosen:?}");
    assert!(!on_terminal(&state, 100, "--color never").join("\n").contains("\x1b["));
    let tail = |arguments: &[&str]| -> Ended {
        let mut command = hushflow(["tail"]);
        command.arg(&state).args(arguments);
        finish(&mut command)
    };
    let piped = tail(&[]).succeeded().out;
    assert!(
        !piped.contains('\x1b') && piped.contains("mean income") && !piped.contains("mean debt"),
        "{piped}"
    );
    assert!(tail(&["--columns", "debt"]).succeeded().out.contains("mean debt"));
    let counts = tail(&["--columns", "records"]).succeeded().out;
    assert!(counts.contains("records") && !counts.contains("mean age"), "{counts}");
    assert!(on_terminal(&state, 100, "--columns records").join("\n").contains("records"));
    assert!(tail(&["--color", "always"]).succeeded().out.contains("\x1b["));
    // Chosen cells are shown on terminals of any width.
    for width in [60, 80] {
        let lines = on_terminal(&state, width, "--columns distance,age,distance~age").join("\n");
        let titles = ["mean distance", "mean age", "sd distance", "sd age", "corr age~distance"];
        assert!(titles.iter().all(|title| lines.contains(title)), "{lines}");
        assert!(!lines.contains('…') && !lines.contains("more cells"), "{lines}");
    }
    tail(&["--columns", "depth"]).failed(2, &["--columns depth", "mean age"]);
    tail(&["--columns", "age", "--format", "csv"]).failed(2, &["for tables"]);
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = finish(&mut hushflow(["completions", shell])).succeeded().out;
        assert!(["tail", "completions", "until-idle"].iter().all(|word| script.contains(word)), "{shell}");
    }
    let lab = Lab::new();
    let pages = lab.path("share/man1");
    let mut command = hushflow(["man"]);
    finish(command.arg(&pages)).succeeded();
    let page = std::fs::read_to_string(pages.join("hushflow-tail.1")).expect("a page");
    assert!(page.contains("\\-\\-columns") && page.contains("terminal"), "{page}");
    assert!(pages.join("hushflow.1").exists() && pages.join("hushflow-run.1").exists());
}
