//! Checks the source text: which modules may use which words, how files begin, and how long they
//! are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of lines of a file.
const ROOM: usize = 500;

/// Maximum number of characters of a line of comments, and of code in them, as set for rustfmt.
const COMMENT: usize = 100;
const CODE: usize = 110;

/// Words, the path prefixes that may use them, and the reason.
const RESERVED: [(&[&str], &[&str], &str); 6] = [
    (
        &["timely", "differential_dataflow"],
        &[
            "operators/",
            "src/runtime/",
            "src/follow/",
            "training/src/batch_squares.rs",
            "training/src/optimise.rs",
            "training/src/run.rs",
            "training/src/training_loop",
            "training/benches/",
            "examples/embed_in_timely.rs",
            "benches/pipeline.rs",
            "benches/ingestion.rs",
            "python/src/session.rs",
        ],
        "dataflow is plumbing around mathematics",
    ),
    (&["step_while"], &[], "it spins; step_or_park waits"),
    (&["todo!", "unimplemented!"], &[], "what is here is finished"),
    (&["unsafe "], &[], "nothing here needs it"),
    (
        &["std::fs", "std::net", "std::env", "SystemTime", "Instant", "println!", "eprintln!", "print!("],
        &[
            "src/",
            "formats/",
            "tests/",
            "benches/",
            "examples/",
            "mechanism/tests/",
            "mechanism/benches/",
            "mechanism/examples/",
            "estimators/tests/",
            "estimators/benches/",
            "operators/tests/",
            "operators/benches/",
            "operators/examples/",
            "training/",
        ],
        "mechanism and operators know no files, sockets, clocks or terminals",
    ),
    (
        &["rand_distr"],
        &[
            "tests/",
            "benches/",
            "examples/",
            "mechanism/tests/",
            "mechanism/benches/",
            "estimators/tests/",
            "estimators/benches/",
            "operators/tests/",
            "operators/benches/",
        ],
        "floating-point noise is never released",
    ),
];

struct SourceFile {
    path: String,
    text: String,
}

impl SourceFile {
    /// Lines with their numbers, without comments and the tests at the end.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.text.find("#[cfg(test)]\nmod tests {").unwrap_or(self.text.len());
        let lines = self.text[..tests].lines().enumerate();
        lines.map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
    }
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.extension() {
            _ if path.is_dir() => rust_files(&path, found),
            Some(extension) if extension == "rs" => found.push(path),
            _ => {}
        }
    }
}

/// Files of the modules that a source declares for tests only.
fn test_modules(source: &SourceFile) -> Vec<String> {
    let folder = source.path.strip_suffix("mod.rs").or(source.path.strip_suffix("lib.rs"));
    let folder = folder.map_or_else(|| source.path.replace(".rs", "/"), String::from);
    let declared = source.text.split("#[cfg(test)]\nmod ").skip(1);
    let names = declared.filter_map(|rest| rest.lines().next()?.strip_suffix(';'));
    names.map(|name| format!("{folder}{name}.rs")).collect()
}

/// All sources except this one, which contains the forbidden words.
fn sources() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    [
        "mechanism",
        "formats",
        "estimators",
        "operators",
        "training",
        "python",
        "src",
        "tests",
        "benches",
        "examples",
    ]
    .iter()
    .for_each(|folder| rust_files(&root.join(folder), &mut found));
    let sources = found.iter().map(|path| SourceFile {
        path: path.strip_prefix(root).unwrap_or(path).display().to_string(),
        text: std::fs::read_to_string(path).unwrap_or_default(),
    });
    sources.filter(|source| source.path != "tests/system/tidy.rs").collect()
}

fn check(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Checks that documentation names existing files, by their path from the root.
#[test]
fn documentation_names_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("docs").read_dir().unwrap().map(|entry| entry.unwrap().path());
    let pages = folder.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let missing = pages.chain([root.join("README.md")]).flat_map(|page| {
        let text = std::fs::read_to_string(&page).unwrap();
        let named =
            text.split('`').filter(|word| word.ends_with(".rs") && !word.contains(char::is_whitespace));
        let missing = named.filter(|name| !root.join(name).is_file());
        missing.map(|name| format!("{}: there is no {name}", page.display())).collect::<Vec<_>>()
    });
    check(missing.collect());
}

#[test]
fn reserved_words_stay_in_their_modules() {
    let mut problems = Vec::new();
    let sources = sources();
    let tests: Vec<String> = sources.iter().flat_map(test_modules).collect();
    for source in sources.iter().filter(|source| !tests.contains(&source.path)) {
        for (words, modules, why) in RESERVED {
            if modules.iter().any(|module| source.path.starts_with(module)) {
                continue;
            }
            let uses = |line: &&(usize, &str)| words.iter().any(|word| line.1.contains(word));
            let lines: Vec<_> = source.code().collect();
            problems
                .extend(lines.iter().filter(uses).map(|(line, _)| format!("{}:{line}: {why}", source.path)));
        }
    }
    check(problems);
}

/// A change is tested by all tests, the slow ones in a second step.
#[test]
fn no_test_is_left_out() {
    let is_odd = |line: &str| line.starts_with("#[ignore") && line != "#[ignore = \"slow\"]";
    let odd = sources().into_iter().filter(|source| source.text.lines().any(|line| is_odd(line.trim())));
    check(odd.map(|source| format!("{}: a test runs nowhere", source.path)).collect());
}

#[test]
fn every_file_begins_with_a_module_doc() {
    let silent = sources().into_iter().filter(|source| !source.text.starts_with("//! "));
    check(silent.map(|source| format!("{}: begins without a //! line", source.path)).collect());
}

#[test]
fn files_are_short() {
    let sources = sources();
    assert!(sources.len() > 100, "the sources are found");
    let lengths = sources.iter().map(|source| (source.path.as_str(), source.text.lines().count()));
    let long = lengths.filter(|&(_, lines)| lines > ROOM);
    check(long.map(|(path, lines)| format!("{path}: {lines} lines: find its two subjects")).collect());
}

#[test]
fn comments_are_narrow() {
    let mut problems = Vec::new();
    for SourceFile { path, text } in sources() {
        // `Some` inside a fence: whether its lines are code.
        let mut fence = None;
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            if !comment.starts_with("//") {
                fence = None;
                continue;
            }
            if let Some(language) = comment.trim_start_matches(['/', '!', ' ']).strip_prefix("```") {
                fence = if fence.is_some() { None } else { Some(language != "text") };
            }
            let (length, most) = (line.chars().count(), if fence == Some(true) { CODE } else { COMMENT });
            if length > most {
                problems
                    .push(format!("{path}:{}: a comment of {length} characters, above {most}", number + 1));
            }
        }
    }
    check(problems);
}

/// Returns the module of a source and the modules that it imports, from the names after `crate::`
/// outside of tests.
fn imports(source: &SourceFile, folder: &str) -> Option<(String, BTreeSet<String>)> {
    let inside = source.path.strip_prefix(folder)?;
    let module = |path: &str| path.split(['/', '.', ':']).next().unwrap_or_default().to_owned();
    let text: String = source.code().map(|(_, line)| line.to_owned() + "\n").collect();
    let paths = text.split("crate::").skip(1).flat_map(first_names);
    Some((module(inside), paths.collect()))
}

/// The first name of each path that begins here: of one path, or of those in braces.
fn first_names(text: &str) -> Vec<String> {
    let name = |path: &str| -> String {
        path.trim_start().chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect()
    };
    let Some(list) = text.strip_prefix('{') else { return vec![name(text)] };
    let (mut depth, mut names, mut begins) = (0, Vec::new(), true);
    for (at, character) in list.char_indices() {
        if begins && !character.is_whitespace() {
            names.push(name(&list[at..]));
            begins = false;
        }
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' => begins = depth == 0,
            _ => {}
        }
    }
    names
}

/// Returns modules that import each other in a cycle, each with its imports in the cycle.
fn cycle(imports_of: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut left = imports_of.clone();
    // Remove a module that imports none of the remaining ones.
    while let Some(ground) =
        left.iter().find(|(module, to)| !to.iter().any(|to| to != *module && left.contains_key(to)))
    {
        let ground = ground.0.clone();
        left.remove(&ground);
    }
    let within = |to: &BTreeSet<String>| to.iter().filter(|to| left.contains_key(*to)).cloned().collect();
    left.iter()
        .map(|(module, to)| (module, within(to)))
        .map(|(module, to): (_, Vec<_>)| format!("{module} -> {to:?}"))
        .collect()
}

#[test]
fn no_modules_import_each_other_in_a_cycle() {
    let sources = sources();
    let tests: Vec<String> = sources.iter().flat_map(test_modules).collect();
    for folder in
        ["mechanism/src/", "formats/src/", "estimators/src/", "operators/src/", "training/src/", "src/"]
    {
        let mut imports_of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for source in sources.iter().filter(|source| !tests.contains(&source.path)) {
            if let Some((module, to)) =
                imports(source, folder).filter(|(module, _)| module != "lib" && module != "main")
            {
                imports_of.entry(module).or_default().extend(to);
            }
        }
        assert!(imports_of.len() > 1, "the modules of {folder} are found");
        let cycle = cycle(&imports_of);
        assert!(cycle.is_empty(), "{folder}: modules import each other:\n{}", cycle.join("\n"));
    }
}

#[test]
fn cycles_are_detected() {
    assert_eq!(first_names("a::b;"), ["a"]);
    assert_eq!(first_names("{\n    a::{b, c},\n    d,\n};\n{e}"), ["a", "d", ""]);
    let imports_of = |list: &[(&str, &[&str])]| {
        let sets = list
            .iter()
            .map(|(module, to)| ((*module).to_owned(), to.iter().map(|to| (*to).to_owned()).collect()));
        sets.collect::<BTreeMap<_, _>>()
    };
    assert!(cycle(&imports_of(&[("a", &["b", "a", "serde"]), ("b", &["c"]), ("c", &[])])).is_empty());
    assert_eq!(cycle(&imports_of(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])])).len(), 3);
}
