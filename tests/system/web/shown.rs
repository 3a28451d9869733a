//! Texts of the page other than numbers: the age of the newest epoch, names that it can't compare
//! with, counted keys and shortened names. Also the position of the focus.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::browser::Browser;
use super::{ENDED, STREAM, Site, published};
use crate::harness::{Lab, await_until, finish, releases, run, wait};

#[test]
fn a_name_that_is_no_key_leaves_the_chart_as_it_is() {
    let lab = Lab::new();
    let site = Site::of(&published(&lab), &[]);
    let Some(mut browser) = site.open("#key=k3") else { return };
    let is_drawn = "document.querySelectorAll('#trend .line.s0').length > 0";
    browser.await_true(&format!("{ENDED} && {is_drawn}"));
    let compare = |browser: &mut Browser, name: &str| {
        browser.evaluate(&format!("$('other').value = '{name}'; $('comparing').requestSubmit(); 1"));
    };
    compare(&mut browser, "nobody");
    browser.await_true(
        "$('refused').textContent === 'There is no key “nobody”.' && $('other').ariaInvalid === 'true'",
    );
    browser.await_true(&format!(
        "{is_drawn} && $('legend').children.length === 1 && $('other').value === 'nobody'"
    ));
    compare(&mut browser, "k3");
    browser.await_true("$('refused').textContent === 'k3 is in the chart.'");
    compare(&mut browser, " K5 ");
    browser.await_true("$('legend').children.length === 2 && $('refused').textContent === ''");
    assert_eq!(browser.evaluate("location.hash"), json!("#key=k3&vs=k5"), "as the key is written");
    // The same from a pasted address, which also has its epochs in the wrong order.
    browser.evaluate("location.hash = '#key=k3&vs=nobody&vs=k4&from=15&to=5'; 1");
    browser.await_true(&format!(
        "{is_drawn} && $('legend').textContent.includes('k4') && $('trend').ariaValueMax === '15' && !$('message').hidden"
    ));
    let told = browser.evaluate(
        "[$('message').textContent, location.hash, $('trend').ariaValueMin, $('trend').ariaValueMax]",
    );
    let address = "#key=k3&from=5&to=15&vs=k4";
    assert_eq!(told, json!(["There is no key nobody to compare with.", address, "5", "15"]));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

#[test]
fn the_newest_epoch_has_an_age_and_is_late_after_its_deadline() {
    let lab = Lab::new();
    lab.write("data.csv", STREAM.csv());
    let text = STREAM.pipeline("data.csv", "").replace("horizon = 20", "horizon = 40");
    assert!(text.contains("horizon = 40"), "{text}");
    let state = lab.path("state");
    finish(&mut run(&lab.write("pipeline.toml", text), &state, 1)).succeeded();
    let site = Site::of(&state, &[]);
    let Some(mut browser) = site.open("") else { return };
    browser.await_true("$('status').dataset.state === 'live' && /^newest epoch 20, published [0-9]+ s ago$/.test($('age').textContent)");
    // The newest epoch there is, but not live.
    let told = browser.evaluate(
        "(() => { newest = { ...newest, at: Date.now() - 90_000, due: 120 }; drawStatus();
                  return [$('status').textContent, $('age').textContent]; })()",
    );
    assert_eq!(told, json!(["up to date", "newest epoch 20, published 90 s ago"]));
    // A page that is opened long after the last epoch.
    let log = File::options().write(true).open(state.join("public.log")).expect("a log");
    let long_ago = SystemTime::now() - Duration::from_secs(400 * 86_400);
    log.set_modified(long_ago).expect("a time");
    let later = Site::of(&state, &[]);
    for address in ["", "#key=k3"] {
        browser.go(&format!("http://{}/{address}", later.address));
        browser.await_true(
            "$('status').dataset.state === 'late' && $('age').textContent.startsWith('newest epoch 20, published 400 days ago, and the next was due after ')",
        );
    }
    assert_eq!(
        browser.evaluate("getComputedStyle($('status')).color"),
        browser.evaluate("getComputedStyle($('refused')).color")
    );
}

#[test]
fn keys_are_counted_and_names_stay_different_when_they_are_cut() {
    let lab = Lab::new();
    let site = Site::of(&published(&lab), &[]);
    let Some(mut browser) = site.open("") else { return };
    browser.await_true(&format!("{ENDED} && $('found').textContent === '7 keys and their total'"));
    let search = |browser: &mut Browser, text: &str, expected: &str| {
        browser.evaluate(&format!(
            "$('search').value = '{text}'; $('search').dispatchEvent(new Event('input')); 1"
        ));
        browser.await_true(&format!("$('found').textContent === '{expected}'"));
    };
    search(&mut browser, "k", "7 keys");
    search(&mut browser, "k3", "1 of 7 keys");
    search(&mut browser, "al", "0 of 7 keys and their total");
    for (names, most) in [
        (json!(["a", "b"]), 14),
        (json!(["measurement_of_channel_1", "measurement_of_channel_2", "short"]), 14),
        (json!(["first_of_all_the_channels", "other_of_all_the_channels"]), 14),
        (json!(["head_middle_one_of_many_tail", "head_middle_two_of_many_tail"]), 10),
        (json!((0..20).map(|column| format!("a_long_column_name_{column}")).collect::<Vec<_>>()), 14),
    ] {
        let short = browser.evaluate(&format!("shortened({names}, {most})"));
        let short: Vec<String> = serde_json::from_value(short).expect("names");
        let mut different = short.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), names.as_array().expect("names").len(), "{short:?}");
        assert!(short.iter().all(|name| name.chars().count() <= most), "{short:?}");
    }
}

/// If links and buttons vanish or are disabled, the focus stays near them.
#[test]
fn the_focus_stays_with_a_reader_without_a_mouse() {
    let lab = Lab::new();
    let site = Site::of(&published(&lab), &[]);
    let Some(mut browser) = site.open("#key=k3&vs=k4&vs=k5&from=5&to=15") else { return };
    browser.await_true(&format!("{ENDED} && $('legend').children.length === 3"));
    let focused =
        "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.tagName";
    let press = |browser: &mut Browser, target: &str, expected: &str| {
        browser.evaluate(&format!("{target}.focus(); document.activeElement.click(); 1"));
        browser.await_true(&format!("{ENDED} && ({focused}) === '{expected}'"));
    };
    press(&mut browser, "$('legend').querySelector('a')", "Remove k5");
    press(&mut browser, "$('legend').querySelector('a')", "other");
    press(&mut browser, "$('unzoom')", "unzoom");
    assert_eq!(browser.evaluate("$('unzoom').ariaDisabled"), json!("true"));
    press(&mut browser, "$('crumbs').querySelector('[rel=next]')", "detail-title");
    press(&mut browser, "$('crumbs').querySelector('a')", "overview-title");
    browser.evaluate("scrollTo(0, 400); 1");
    press(&mut browser, "$('cards').querySelector('a')", "detail-title");
    assert_eq!(browser.evaluate("scrollY"), 0);
    for name in ["k0", "k1", "k2", "k4", "k5"] {
        browser.evaluate("location.hash.includes('key=k3') || (location.hash = '#key=k3'); 1");
        browser.await_true(&format!("{ENDED} && $('detail-title').textContent === 'k3'"));
        browser.evaluate(&format!(
            "$('other').focus(); $('other').value = '{name}'; $('comparing').requestSubmit(); 1"
        ));
        browser.await_true(&format!("$('legend').textContent.includes('{name}')"));
    }
    // Six keys are the maximum, so the field is hidden.
    browser.await_true(&format!("$('comparing').hidden && ({focused}) === 'Remove k5'"));
}

#[test]
fn values_of_an_address_that_cannot_be_shown_are_named() {
    let lab = Lab::new();
    let site = Site::of(&published(&lab), &[]);
    let Some(mut browser) = site.open("#sort=loudness&from=x&kay=k3") else { return };
    browser.await_true(&format!("{ENDED} && $('cards').children.length === 8 && !$('message').hidden"));
    let told = browser.evaluate("[$('message').textContent, location.hash, $('sort').value]");
    let expected = "There is no sort “loudness”, only name, level, change, signal: the default is shown. \
                    from is “x”, not a whole number from 1 on: the default is shown. \
                    This page knows no “kay”: that part of the address is left out.";
    assert_eq!(told, json!([expected, "", "name"]));
    browser.evaluate("location.hash = '#key=k3&from=99'; 1");
    browser.await_true(&format!(
        "{ENDED} && $('message').textContent.startsWith('Epoch 99 is not published yet')"
    ));
    browser.await_true("$('trend').ariaValueMin === '1' && location.hash === '#key=k3'");
    browser.evaluate("$('from').value = 5; $('to').value = 15; $('zoom').requestSubmit(); 1");
    browser.await_true("$('trend').ariaValueMin === '5' && $('message').hidden");
    // On a phone, a tap on a key shows the key, not the top of the page.
    browser.show_as(390, "light");
    browser.evaluate("location.hash = '#of=mean:a'; 1");
    browser.await_true("!$('overview').hidden && $('cards').children.length === 8");
    browser.evaluate("document.querySelector('#cards a').click(); 1");
    browser.await_true(&format!(
        "{ENDED} && !$('detail').hidden && document.querySelector('#trend .line') !== null"
    ));
    let top = browser.evaluate("$('detail-title').getBoundingClientRect().top").as_f64();
    assert!(top.is_some_and(|top| (0.0..100.0).contains(&top)), "{top:?}");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// A page that is opened before the log is there shows it once it is, and then each epoch about a
/// second after its commit.
#[test]
fn a_page_turns_live_and_follows_the_log() {
    let lab = Lab::new();
    let text = "name = 'live'
source = { path = '-', format = 'csv' }
columns = [{ name = 'x', lower = -1, upper = 1 }]
key = { column = 'key', values = ['a', 'b'] }
privacy = { epsilon = 1, delta = 1e-6 }
epochs = { records = 2, horizon = 50 }
";
    let (pipeline, state) = (lab.write("live.toml", text), lab.path("state"));
    let site = Site::of(&state, &[]);
    let Some(mut browser) = site.open("") else { return };
    let shows = |browser: &mut Browser, script: &str| {
        await_until(script, || {
            browser.evaluate(&format!("document.readyState === 'complete' && ({script})")) == true
        });
    };
    shows(
        &mut browser,
        "!$('awaited').hidden && $('controls').hidden && $('status').textContent === 'no release yet'",
    );
    let mut child = run(&pipeline, &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut write = |rows: &str| input.write_all(rows.as_bytes()).expect("the run reads");
    write("key,x\na,0.5\nb,0.5\na,0.5\n");
    browser.await_true(
        "$('awaited').hidden && overview?.readings.to === 1 && $('status').dataset.state === 'live'",
    );
    for epoch in 2..4 {
        write("b,0.5\na,0.5\n");
        await_until("it is committed", || releases(&state).len() == epoch);
        let committed = Instant::now();
        browser.await_true(&format!(
            "overview.readings.to === {epoch} && $('status').dataset.state === 'live' && $('age').textContent.startsWith('newest epoch {epoch},')"
        ));
        // Generous, because the machine also runs other tests.
        assert!(committed.elapsed() < Duration::from_secs(4), "{:?}", committed.elapsed());
    }
    // A value that is behind is not called live.
    let told = browser.evaluate(
        "(() => { newest = { ...newest, epoch: 9 }; drawStatus();
                  return [$('status').textContent, $('age').textContent.split(',')[0]]; })()",
    );
    assert_eq!(told, json!(["catching up", "epoch 3 is shown; newest epoch 9"]));
    drop(input);
    wait(child).succeeded();
    // Polls of the page before there is a log are refused.
    browser.complaints.retain(|complaint| !complaint.to_string().contains("503"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}
