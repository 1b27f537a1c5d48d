//! Rates of the store against what bounds them, in one run and turn by turn, so that a machine that is busy is so for both.
//!
//!     cargo bench -p gpuos_store --bench rates -- [--folder DIR] [--mib N] [--turns N] [--page FILE.md | --only codes|stop|files|forms]
//!
//! `make bench-checkpoint` calls it. Each row has the median rate of ours, that of its peer, and the median of their ratios.

#[path = "rates/bytes.rs"]
mod bytes;
#[path = "rates/codes.rs"]
mod codes;
#[path = "rates/files.rs"]
mod files;
#[path = "rates/forms.rs"]
mod forms;
#[path = "rates/stop.rs"]
mod stop;
#[path = "rates/table.rs"]
mod table;

use std::path::PathBuf;

use table::Table;

/// What was asked for.
struct Options {
    folder: PathBuf,
    mib: usize,
    turns: usize,
    page: Option<PathBuf>,
    /// The one kind of rows that is measured; a page has all of them.
    only: Option<String>,
}

fn options() -> Options {
    let mut options = Options {
        folder: std::env::temp_dir(),
        mib: 1024,
        turns: 5,
        page: None,
        only: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .unwrap_or_else(|| panic!("{word} takes a value"))
        };
        match word.as_str() {
            "--folder" => options.folder = value().into(),
            "--mib" => options.mib = value().parse().expect("--mib takes a number"),
            "--turns" => options.turns = value().parse().expect("--turns takes a number"),
            "--page" => options.page = Some(value().into()),
            "--only" => options.only = Some(value()),
            // cargo bench says this to every benchmark.
            "--bench" => {}
            other => panic!("{other}: --folder, --mib, --turns, --page and --only are known"),
        }
    }
    options
}

fn main() {
    let options = options();
    let mut table = Table::new();
    let wanted = |part: &str| options.only.as_ref().is_none_or(|only| only == part);
    let (folder, mib, turns) = (&options.folder, options.mib, options.turns);
    if wanted("codes") {
        codes::measure(turns, &mut table);
    }
    if wanted("stop") {
        stop::measure(folder, mib, turns, &mut table);
    }
    if wanted("files") {
        files::measure(folder, mib, turns, &mut table);
    }
    if wanted("forms") {
        forms::measure(folder, mib, turns, &mut table);
    }
    print!("{table}");
    if let Some(page) = options.page.filter(|_| options.only.is_none()) {
        table.put(&page);
    }
}
