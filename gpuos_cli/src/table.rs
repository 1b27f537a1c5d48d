//! Tables of plain text.

use std::io::IsTerminal;

/// A table whose columns are as wide as their widest cell.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table that starts with a row of headings.
    pub fn new(headings: &[&str]) -> Table {
        Table {
            rows: vec![headings.iter().map(|h| h.to_string()).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text: two blanks between columns, numbers to the right, none after the last cell.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|r| r.get(column))
                .map(|c| c.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let numbers = |column: usize| {
            let cells = self.rows.iter().skip(1).filter_map(|r| r.get(column));
            cells.clone().count() > 0
                && cells
                    .clone()
                    .all(|c| c.is_empty() || c.parse::<f64>().is_ok())
        };
        let right: Vec<bool> = (0..columns).map(numbers).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                line += &if right[column] {
                    format!("{cell:>width$}  ")
                } else {
                    format!("{cell:<width$}  ")
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// `1 node`, `2 nodes`.
pub fn count(number: usize, word: &str) -> String {
    if number == 1 {
        format!("1 {word}")
    } else {
        format!("{number} {word}s")
    }
}

/// Whether text may carry colour: standard output is a terminal and `NO_COLOR` is not set.
pub fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// `text` in an ANSI colour (31 red, 32 green, 33 yellow), if colour is on.
pub fn paint(text: &str, code: u8, on: bool) -> String {
    if on {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.into()
    }
}
