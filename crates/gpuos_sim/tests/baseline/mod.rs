//! Figures against those that were written down.

/// Every line of `found` is as good as that of `baseline`: `worse` says what is not, of a line that was and the one
/// that is now.
pub fn holds(baseline: &str, found: &str, worse: impl Fn(&str, &str) -> Vec<String>) {
    let lines = baseline.lines().zip(found.lines()).enumerate();
    let all: Vec<String> = lines
        .flat_map(|(line, (known, now))| {
            let told = worse(known, now).into_iter();
            told.map(move |why| format!("line {}: {why}", line + 1))
        })
        .collect();
    let whole = baseline.lines().count() == found.lines().count();
    assert!(all.is_empty() && whole, "{}\nnow:\n{found}", all.join("\n"));
}
