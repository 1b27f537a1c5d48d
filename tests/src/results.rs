//! Files of docs/results that long tests write.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Today, as the pages have it.
pub fn today() -> String {
    let date = Command::new("date").arg("+%F").output();
    let date = date.expect("date runs").stdout;
    String::from_utf8_lossy(&date).trim().to_string()
}

/// Whether this run is to write them.
pub fn wanted() -> bool {
    std::env::var_os("GPUOS_WRITE").is_some()
}

/// Writes `NAME.csv`, and in `NAME.md` what stands between `<!-- made: NAME -->` and `<!-- end -->`.
pub fn write(name: &str, csv: &str, made: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results");
    fs::write(folder.join(format!("{name}.csv")), csv).expect("written");
    let page = folder.join(format!("{name}.md"));
    let text = fs::read_to_string(&page).expect("the page is there");
    let (begin, end) = (format!("<!-- made: {name} -->\n"), "<!-- end -->");
    let (head, rest) = text.split_once(&begin).expect("a place for the table");
    let (_, tail) = rest.split_once(end).expect("its end");
    fs::write(page, format!("{head}{begin}{made}{end}{tail}")).expect("written");
}
