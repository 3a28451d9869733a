//! Tests the page in a real browser: its numbers, addresses, widths, keys and files.

use std::fmt::Write as _;
use std::io::{Write, stderr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Value, json};

use super::browser::Browser;
use super::{ENDED, Site, lines, plain, published};
use crate::harness::{Lab, await_until, finish, run, wait};

/// Returns the numbers that the page shows for the last line of output.
fn shown(browser: &mut Browser) -> Value {
    browser.evaluate(
        "(() => {
            const number = (text) => (text === '' ? null : Number(text));
            const cards = [...$('columns').children].map((card) => card.dataset);
            const rows = [...$('matrix').tBodies[0].rows].map((row) => [...row.cells].slice(1));
            const covariance = rows.map((row) => row.map((cell) => number(cell.dataset.covariance)));
            return {
                epoch: number($('epoch').dataset.value), generation: number($('generation').textContent),
                chain: $('chain').textContent, quality: $('quality').dataset.value, count: number($('count').dataset.value),
                columns: cards.map(({ name }) => name), mean: cards.map(({ value }) => number(value)),
                lower: cards.map(({ lower }) => number(lower)), upper: cards.map(({ upper }) => number(upper)),
                covariance: covariance.flat().every((value) => value === null) ? null : covariance,
            };
        })()",
    )
}

fn expected(line: &str) -> Value {
    let line: Value = serde_json::from_str(line).expect("a JSON line");
    let columns = ["a", "b", "c", "d", "e"];
    let end = |which: usize| columns.map(|name| line["mean_interval"][name][which].clone());
    json!({
        "epoch": line["epoch"], "generation": line["generation"], "chain": line["chain"],
        "quality": line["quality"], "count": line["count"],
        "columns": columns, "mean": columns.map(|name| line["mean"][name].clone()),
        "lower": end(0), "upper": end(1), "covariance": line["covariance"],
    })
}

/// Compares numbers by value, with or without a decimal point.
fn same(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Number(found), Value::Number(expected)) => found.as_f64() == expected.as_f64(),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| same(found, expected))
        }
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && found
                    .iter()
                    .all(|(name, found)| expected.get(name).is_some_and(|expected| same(found, expected)))
        }
        _ => found == expected,
    }
}

#[test]
fn a_browser_shows_the_numbers_of_tail() {
    let lab = Lab::new();
    let state = published(&lab);
    let others = ["window:7", "exponential:0.75", "average"];
    let offered = ["prefix"].iter().chain(&others).flat_map(|workload| ["--workload", workload]);
    let site = Site::of(&state, &[&["--key", "k2"][..], &offered.collect::<Vec<_>>()].concat());
    let Some(mut browser) = site.open("") else { return };
    let check = |browser: &mut Browser, key: &str, workload: &str| {
        browser.await_true(&format!(
            "{ENDED} && $('detail-title').textContent === '{key}' && $('epoch')?.dataset.value === '20'"
        ));
        let line = lines(&state, &["--key", key, "--workload", workload]).pop().expect("a last line");
        let (found, expected) = (shown(browser), expected(&line));
        assert!(same(&found, &expected), "{key} {workload}:\n{found}\n{expected}");
    };
    check(&mut browser, "k2", "prefix");
    for (key, workload) in ["k4", "k0", "k6"].into_iter().zip(others) {
        browser.evaluate(&format!("location.hash = '#key={key}&workload={workload}'; 1"));
        browser.await_true(&format!("$('workload').value === '{workload}'"));
        check(&mut browser, key, workload);
    }
    // Charts and the matrix can be reached and read by keyboard alone.
    let label = browser.evaluate("$('trend').focus(); $('trend').ariaLabel");
    assert_eq!(label, "Mean of a, k6, by epoch");
    ["ArrowLeft", "ArrowLeft"].into_iter().for_each(|key| browser.press(key));
    let read = browser.evaluate("$('trend').getAttribute('aria-valuetext')");
    assert!(read.as_str().is_some_and(|text| text.starts_with("Epoch 18, from 2020-01-01")), "{read}");
    browser.evaluate("document.querySelector('#matrix td[tabindex=\"0\"]').focus(); 1");
    browser.press("ArrowDown");
    let read = browser.evaluate("[document.activeElement.dataset.at, $('pair').textContent]");
    assert_eq!(read[0], "1,1", "{read}");
    browser.press("ArrowRight");
    assert!(
        browser.evaluate("$('pair').textContent").as_str().is_some_and(|text| text.starts_with("b and c: "))
    );
    let fetched =
        "performance.getEntriesByType('resource').every((entry) => entry.name.startsWith(location.origin))";
    assert_eq!(browser.evaluate(fetched), true, "nothing is fetched from elsewhere");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn addresses_hold_the_state_of_the_page() {
    let lab = Lab::new();
    let site = Site::of(&published(&lab), &["--workload", "prefix", "--workload", "window:7"]);
    let Some(mut browser) = site.open("") else { return };
    browser.await_true(&format!("{ENDED} && $('cards').children.length === 8"));
    let choose = |browser: &mut Browser, id: &str, value: &str| {
        browser.evaluate(&format!(
            "$('{id}').value = '{value}'; $('{id}').dispatchEvent(new Event('change')); 1"
        ));
    };
    choose(&mut browser, "of", "sd:c");
    choose(&mut browser, "sort", "level");
    browser.await_true("$('overview-title').textContent === 'Standard deviation of c'");
    let levels = "[...$('cards').children].map(({ dataset }) => (dataset.value === '' ? -Infinity : Number(dataset.value)))";
    let is_sorted = format!("{levels}.every((value, at, all) => at === 0 || all[at - 1] >= value)");
    browser.await_true(&is_sorted);
    browser.evaluate("$('search').value = 'K3'; $('search').dispatchEvent(new Event('input')); 1");
    browser.await_true("$('cards').children.length === 1");
    browser.evaluate("document.querySelector('#cards a').click(); 1");
    browser.await_true("!$('detail').hidden && $('detail-title').textContent === 'k3'");
    browser.evaluate("$('other').value = 'k5'; $('comparing').requestSubmit(); 1");
    browser.await_true(
        "$('legend').children.length === 2 && document.querySelectorAll('#trend .line.s1').length > 0",
    );
    browser.evaluate("$('from').value = 5; $('to').value = 15; $('zoom').requestSubmit(); 1");
    browser.await_true("$('trend').ariaValueMin === '5' && $('trend').ariaValueMax === '15'");
    choose(&mut browser, "workload", "window:7");
    browser.await_true("$('workload').value === 'window:7' && $('status').dataset.state === 'ended'");
    let address = browser.evaluate("location.hash");
    for part in ["key=k3", "vs=k5", "of=sd%3Ac", "from=5", "to=15", "workload=window%3A7"] {
        assert!(address.as_str().is_some_and(|address| address.contains(part)), "{part} in {address}");
    }
    // The back button undoes the steps one by one.
    let here =
        "[location.hash, $('detail').hidden, $('legend').children.length, $('trend').ariaValueMax].join(' ')";
    for expected in ["to=15", "vs=k5", "key=k3", "q=K3"] {
        browser.evaluate("history.back(); new Promise((done) => setTimeout(done, 50))");
        browser.await_true(&format!("location.hash.includes('{expected}')"));
    }
    browser
        .await_true("$('detail').hidden && $('cards').children.length === 1 && $('search').value === 'K3'");
    // The address restores the same view on a page that is loaded anew.
    browser.go("about:blank");
    let pasted = address.as_str().expect("an address").to_owned();
    browser.go(&format!("http://{}/{pasted}", site.address));
    browser.await_true(&format!(
        "{ENDED} && !$('detail').hidden && $('legend').children.length === 2 && $('trend').ariaValueMax === '15' &&
         $('of').value === 'sd:c' && $('workload').value === 'window:7'"
    ));
    let before = browser.evaluate(here);
    // Addresses of a pair and of a regression, pasted into the same tab.
    browser.evaluate("location.hash = '#key=k1&of=correlation%3Ab~d'; 1");
    browser.await_true("$('trend-title').textContent === 'Correlation of b and d'");
    assert_ne!(browser.evaluate(here), before);
    browser.evaluate("location.hash = '#key=k1&estimate=regression%3Aa~b%2Bc'; 1");
    browser.await_true("$('trend-title').textContent === 'Regression of a: coefficient of intercept' && $('columns').children.length === 3");
    // What can't be shown is left out of the address, and the page says why.
    let mistakes = [
        (
            "key=nobody",
            "There is no key “nobody”: all keys are shown.",
            "!$('overview').hidden && $('cards').children.length > 0",
        ),
        ("key=K1", "There is no key “K1”: k1 is shown.", "$('detail-title').textContent === 'k1'"),
        ("key=k1&of=mean%3Az", "of is “mean:z”, which can't be shown", "$('of').value === 'mean:a'"),
        ("key=k1&of=nonsense", "of is “nonsense”, which can't be shown", "$('of').value === 'mean:a'"),
        ("of=mean%3Az", "of is “mean:z”, which can't be shown", "$('of').value === 'mean:a'"),
        (
            "key=k1&workload=window%3A99",
            "workload is “window:99”, which can't be shown (this page shows ",
            "$('workload').value === 'prefix'",
        ),
        (
            "key=k1&estimate=tarot&of=luck",
            "estimate is “tarot”, which can't be shown (this page shows ",
            "$('of').value === 'mean:a'",
        ),
        (
            "key=k1&estimate=regression%3Aa~z",
            "estimate is “regression:a~z”, which can't be shown",
            "$('of').value === 'mean:a'",
        ),
    ];
    for (hash, reason, shown) in mistakes {
        browser.evaluate(&format!("location.hash = '#{hash}'; 1"));
        browser.await_true(&format!(
            "{ENDED} && !$('message').hidden && $('message').textContent.startsWith(\"{reason}\") && {shown} &&
             ($('overview').hidden || $('detail').hidden) && !($('overview').hidden && $('detail').hidden)"
        ));
        browser.evaluate("location.hash = '#sort=name'; 1");
        browser.await_true("!$('overview').hidden && $('message').hidden && $('cards').children.length > 0");
    }
    browser.complaints.retain(|complaint| !complaint.to_string().contains("400"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// Ten epochs of a hundred keys and twenty columns.
fn wide(lab: &Lab) -> PathBuf {
    let names: Vec<_> = (0..20).map(|column| format!("a_long_column_name_{column}")).collect();
    let bounds = names.iter().map(|name| format!("{{ name = '{name}', lower = -1, upper = 1 }}"));
    let keys: Vec<_> = (0..100).map(|key| format!("'station number {key}'")).collect();
    let text = format!(
        "name = 'wide'
source.path = 'wide.csv'
columns = [{}]
key = {{ column = 'key', values = [{}] }}
epochs = {{ records = 2000, horizon = 10 }}
privacy = {{ epsilon = 30, delta = 1e-6 }}
simulation.seed = 1
",
        bounds.collect::<Vec<_>>().join(", "),
        keys.join(", ")
    );
    let mut csv = format!("key,{}\n", names.join(","));
    for row in 0..20_000_u32 {
        let _ = write!(csv, "station number {}", row % 100);
        for column in 0..20 {
            let _ = write!(csv, ",0.{}", (row / 100 * 7 + column * 3 + row) % 10);
        }
        csv.push('\n');
    }
    lab.write("wide.csv", csv);
    let state = lab.path("state");
    finish(&mut run(&lab.write("wide.toml", text), &state, 1)).succeeded();
    state
}

/// Returns elements that are wider than the screen, except those that scroll, and charts without a
/// line.
const LAYOUT_FAULTS: &str = "(() => {
    const wide = document.documentElement.scrollWidth > innerWidth;
    const scrolls = (node) => node !== null && (node.matches('.wide, select') || scrolls(node.parentElement));
    const out = [...document.body.querySelectorAll('*')].filter((node) => {
        const { right, width } = node.getBoundingClientRect();
        return width > 1 && right > innerWidth + 1 && !scrolls(node) && !node.closest('svg');
    });
    const charts = [...document.querySelectorAll('main .spark, main .trend')].filter((chart) => chart.checkVisibility());
    const blank = charts.filter((chart) => chart.querySelector('.line') === null);
    return { wide, out: out.map((node) => node.outerHTML.slice(0, 90)), blank: blank.length, some: charts.length > 0 };
})()";

#[test]
#[ignore = "slow"]
fn nothing_leaves_the_screen_or_stays_blank_at_three_widths() {
    let lab = Lab::new();
    let site = Site::of(&wide(&lab), &[]);
    let Some(mut browser) = site.open("") else { return };
    let axe = axe(&lab);
    for (width, scheme) in [(1600, "light"), (1024, "dark"), (390, "light"), (390, "dark")] {
        browser.show_as(width, scheme);
        for (address, charts) in [
            ("#sort=signal", 101),
            ("#key=station+number+7&vs=station+number+8&open=newest&open=history", 21),
        ] {
            browser.evaluate(&format!("location.hash = '{address}'; 1"));
            let all =
                "document.querySelectorAll('main :is(#cards, #columns, #trend) svg:is(.spark, .trend)')";
            browser.await_true(&format!(
                "{ENDED} && [...{all}].filter((chart) => chart.checkVisibility()).length === {charts}"
            ));
            if charts == 21 {
                browser.await_true("$('matrix').rows.length === 21 && !$('matrix-section').hidden");
            }
            browser.evaluate("new Promise(requestAnimationFrame).then(() => 1)");
            let amiss = browser.evaluate(LAYOUT_FAULTS);
            let fine = json!({ "wide": false, "out": [], "blank": 0, "some": true });
            assert_eq!(amiss, fine, "{address} at {width} pixels");
            if let Some(axe) = &axe {
                browser.evaluate(axe);
                let found = browser.evaluate(
                    "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => [id, nodes[0].html, nodes[0].failureSummary]))",
                );
                assert_eq!(found, json!([]), "{address} at {width} pixels, {scheme}");
            }
        }
    }
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// The checks of axe-core, if npm can get them; otherwise the test prints that they are skipped.
fn axe(lab: &Lab) -> Option<String> {
    let mut command = Command::new("npm");
    let install = ["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "axe-core@4.10.3"];
    let silent = command.args(install).current_dir(lab.path("")).stdin(Stdio::null()).stdout(Stdio::null());
    let done = silent.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let script = std::fs::read_to_string(lab.path("node_modules/axe-core/axe.min.js")).ok();
    let script = script.filter(|_| done);
    if script.is_none() {
        let _ = writeln!(
            stderr(),
            "skipped: npm has no axe-core, so nobody has checked that the page is accessible"
        );
    }
    script
}

#[test]
fn what_is_shown_can_be_downloaded() {
    let lab = Lab::new();
    let site = Site::of(&published(&lab), &[]);
    let Some(mut browser) = site.open("#key=k3&vs=k4&of=sd%3Ab") else { return };
    browser.await_true(&format!("{ENDED} && $('legend').children.length === 2"));
    let folder = lab.path("downloads");
    std::fs::create_dir(&folder).expect("a directory");
    browser.download_to(&folder);
    let saved = |browser: &mut Browser, place: &str, kind: &str, name: &str| {
        let click = format!(
            "[...document.querySelectorAll('[data-of={place}] button')].find((button) => button.textContent === '{kind}').click(); 1"
        );
        browser.evaluate(&click);
        let file = folder.join(name);
        await_until(name, || file.metadata().is_ok_and(|found| found.len() > 0));
        std::fs::read(file).expect("a file")
    };
    let csv = String::from_utf8(saved(&mut browser, "trend", "CSV", "stream-k3-sd_b.csv")).expect("text");
    let json: Value =
        serde_json::from_slice(&saved(&mut browser, "trend", "JSON", "stream-k3-sd_b.json")).expect("JSON");
    let (_, readings) = site.get("/readings?key=k3&key=k4&of=sd", "");
    let readings: Value = serde_json::from_str(&readings).expect("JSON");
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0], ["epoch", "start", "key", "statistic", "of", "value", "lower", "upper", "clear"]);
    assert_eq!(rows.len(), 1 + 2 * 20, "the series of the chart alone");
    assert_eq!(
        (&json["epsilon"], &json["private"], json["rows"].as_array().map(Vec::len)),
        (&json!(20), &json!(true), Some(40))
    );
    let clear = browser.evaluate("['k3', 'k4'].flatMap((key) => lineOf(detail.readings, key, 'sd:b').good)");
    for (at, row) in rows[1..].iter().enumerate() {
        let (key, epoch) = (at / 20, at % 20);
        let own = &readings["keys"][key]["series"][1];
        assert_eq!(row[8] == "true", clear[at] == 1, "each number is judged by itself: {row:?}");
        for (column, end) in [(5, "value"), (6, "lower"), (7, "upper")] {
            assert_eq!(row[column].parse().ok(), own[end][epoch].as_f64(), "{row:?}");
            assert_eq!(json["rows"][at][end].as_f64(), own[end][epoch].as_f64());
        }
        assert_eq!(row[..5], [&(epoch + 1).to_string(), row[1], &format!("k{}", key + 3), "sd", "b"]);
    }
    let all = String::from_utf8(saved(&mut browser, "columns", "CSV", "stream-k3-sd.csv")).expect("text");
    assert_eq!(all.lines().count(), 1 + 5 * 20, "the columns of one key");
    saved(&mut browser, "trend", "Parquet", "stream-k3-sd_b.parquet");
    let file = std::fs::File::open(folder.join("stream-k3-sd_b.parquet")).expect("a file");
    let table = SerializedFileReader::new(file).expect("Parquet");
    let found: Vec<_> = table.get_row_iter(None).expect("rows").map(|row| row.expect("a row")).collect();
    assert_eq!(found.len(), 40);
    for (row, expected) in found.iter().zip(&rows[1..]) {
        let texts: Vec<String> = row
            .get_column_iter()
            .filter(|(name, _)| *name != "start")
            .map(|(_, field)| match field {
                Field::Null => String::new(),
                Field::Str(text) => text.clone(),
                Field::Double(number) => number.to_string(),
                other => other.to_string(),
            })
            .collect();
        assert_eq!(texts[..4], [expected[0], expected[2], expected[3], expected[4]], "{row}");
        for (text, expected) in texts[4..7].iter().zip(&expected[5..8]) {
            assert_eq!(text.parse::<f64>().ok(), expected.parse().ok(), "{row}");
        }
        assert_eq!(texts[7], expected[8]);
    }
    let svg = String::from_utf8(saved(&mut browser, "trend", "SVG", "stream-k3-sd_b.svg")).expect("text");
    assert!(
        svg.starts_with("<svg")
            && svg.contains("Standard deviation of b")
            && svg.contains("(ε, δ) = (20, 0.000001)")
    );
    // The legend shows each key with a piece of its line.
    for key in ["k3", "k4"] {
        assert!(svg.contains(&format!(">{key}</text>")), "{key} is in the legend");
    }
    assert_eq!(svg.matches("d=\"M1,4H23\"").count(), 2);
    assert!(svg.contains("stroke=\"rgb") && !svg.contains("class="), "a file has no style sheet");
    let is_png = |bytes: &[u8]| bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 10_000;
    assert!(is_png(&saved(&mut browser, "trend", "PNG", "stream-k3-sd_b.png")));
    browser.evaluate("location.hash = '#of=mean:a'; 1");
    browser.await_true(&format!("{ENDED} && $('cards').children.length === 8"));
    assert!(is_png(&saved(&mut browser, "overview", "PNG", "stream-all-keys-mean_a.png")));
    let csv = String::from_utf8(saved(&mut browser, "overview", "CSV", "stream-all-keys-mean_a.csv"))
        .expect("text");
    assert_eq!(csv.lines().count(), 1 + 8 * 20);
    browser.evaluate("location.hash = '#of=mean:a&q=k&sort=level'; 1");
    browser.await_true("$('cards').children.length === 7");
    let order = browser.evaluate("[...$('cards').children].map(({ dataset }) => dataset.name)");
    let csv = String::from_utf8(saved(&mut browser, "overview", "CSV", "stream-keys-with-k-mean_a.csv"))
        .expect("text");
    let mut keys: Vec<_> = csv.lines().skip(1).filter_map(|line| line.split(',').nth(2)).collect();
    keys.dedup();
    assert_eq!(json!(keys), order, "the keys that are shown, in their order");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// The server also searches keys that it does not list, and the page offers principal components.
#[test]
fn keys_beyond_the_list_are_found_by_a_part_of_their_names() {
    let lab = Lab::new();
    let keys: Vec<_> = (0..1200).map(|key| format!("'Station {key:04}'")).collect();
    let text = format!(
        "name = 'many'
source.path = 'many.csv'
columns = [{{ name = 'x', lower = -1, upper = 1 }}, {{ name = 'y', lower = -1, upper = 1 }}]
key = {{ column = 'key', values = [{}] }}
epochs = {{ records = 1200, horizon = 3 }}
privacy = {{ epsilon = 30, delta = 1e-6 }}
",
        keys.join(", ")
    );
    let mut csv = "key,x,y\n".to_owned();
    (0..3600).for_each(|row| writeln!(csv, "Station {:04},0.{},0.5", row % 1200, row % 9).unwrap());
    lab.write("many.csv", csv);
    finish(&mut run(&lab.write("many.toml", text), &lab.path("state"), 1)).succeeded();
    let site = Site::of(&lab.path("state"), &[]);
    let Some(mut browser) = site.open("#q=station+11") else { return };
    browser.await_true(&format!("{ENDED} && $('cards').children.length === 100"));
    let first = browser.evaluate("$('cards').children[0].dataset.name");
    assert_eq!(first, json!("Station 1100"), "the page lists the first thousand only");
    browser.evaluate("$('search').value = '1199'; $('search').dispatchEvent(new Event('input')); 1");
    browser.await_true(&format!("{ENDED} && $('cards').children.length === 1"));
    browser.evaluate("$('search').value = 'nowhere'; $('search').dispatchEvent(new Event('input')); 1");
    browser.await_true(&format!("{ENDED} && $('cards').children.length === 0"));
    browser.evaluate("$('estimate').value = 'pca:2'; $('estimate').dispatchEvent(new Event('change')); 1");
    browser.await_true(&format!(
        "{ENDED} && location.hash.includes('pca') && $('of').selectedOptions.length === 1"
    ));
    let title = browser.evaluate("$('estimate').selectedOptions[0].textContent");
    assert_eq!(title, json!("first 2 principal components"));
    browser.evaluate("location.hash = '#key=Station+1199&estimate=pca:2'; 1");
    browser.await_true(&format!("{ENDED} && $('columns').children.length === 2"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// A long log arrives subsampled. The page processes and draws one hour at ten epochs a second
/// quickly.
#[test]
#[ignore = "slow"]
fn a_browser_keeps_up_with_a_long_log() {
    let lab = Lab::new();
    let (pipeline, csv) = plain(&lab, 5, 5000, 1);
    let state = lab.path("state");
    let mut run = run(&pipeline, &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
    run.stdin.take().expect("a pipe").write_all(csv.as_bytes()).expect("the run reads");
    wait(run).succeeded();
    let site = Site::of(&state, &[]);
    let numbers: Vec<_> = site.events("", "").into_iter().map(|event| event.0).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 2), "every second epoch");
    assert_eq!(numbers.last(), Some(&5000));
    let Some(mut browser) = site.open("") else { return };
    browser.await_true(&format!("{ENDED} && $('epoch')?.dataset.value === '5000'"));
    let drawn = browser.evaluate("({ step: detail.readings.step, epochs: detail.readings.epochs.length })");
    assert!(drawn["step"].as_u64() > Some(1) && drawn["epochs"].as_u64() < Some(490), "{drawn}");
    let spent = browser.evaluate(
        "(() => {
            const { readings, newest: [line] } = detail;
            const began = performance.now();
            for (let epoch = 5001; epoch <= 41000; epoch++) append(readings, [{ ...line, epoch, quality: 'good' }], 0);
            const taken = performance.now();
            point(null);
            drawDetail({ ...current(), key: 'all' }, 'mean:c0');
            const { epochs } = readings;
            return { take: taken - began, draw: performance.now() - taken, length: epochs.length, from: epochs[0], to: epochs.at(-1) };
        })()",
    );
    assert_eq!(spent["to"], json!(41000));
    assert!(spent["length"].as_u64().is_some_and(|length| (400..=1000).contains(&length)), "{spent}");
    // Generous limits for five columns, because the machine also runs other tests.
    assert!(spent["take"].as_f64() < Some(5000.0) && spent["draw"].as_f64() < Some(2000.0), "{spent}");
    // Points outside a chart are marked at its edge.
    let marked = browser.evaluate(
        "(() => {
            const value = Array.from({ length: 100 }, (_, at) => (at === 40 ? 1000 : at === 41 ? -1000 : at % 3));
            const end = (sign) => value.map((number) => number + sign);
            const line = { key: 'x', epochs: value.map((_, at) => at + 1), value, lower: end(-1), upper: end(1), good: value.map(() => 1) };
            const range = domain([line], false);
            const { picture } = trend([line], { width: 600, height: 300, from: 1, to: 100, range, cursor: null });
            const sides = [...picture.querySelectorAll('.mark')].map((mark) => mark.dataset.side);
            const whole = outside([line], domain([line], true));
            return { ...outside([line], range), sides, whole: whole.above + whole.below };
        })()",
    );
    assert_eq!(marked, json!({ "above": 1, "below": 1, "of": 100, "sides": ["above", "below"], "whole": 0 }));
    let began = Instant::now();
    browser.evaluate("new Promise(requestAnimationFrame).then(() => 1)");
    assert!(began.elapsed() < Duration::from_secs(5), "the page answers");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
