//! What a command answers: text for people, JSON for programs, and yes or no.

use std::io::Write;

use gpuos_model::screen::lines;
use serde_json::{Value, json};

/// The form of the doctor's answer.
pub const DOCTOR: &str = "gpuos.doctor/1";

/// The answer of a subcommand.
pub struct Reply {
    /// Name and version of the JSON's form, for example `gpuos.topo/1`.
    pub schema: &'static str,
    /// The JSON, an object without `schema`.
    pub json: Value,
    /// The text.
    pub text: String,
    /// Exit code 0 or 1.
    pub yes: bool,
}

impl Reply {
    /// Prints the answer and says how to exit.
    pub fn print(self, json: bool) -> u8 {
        if json {
            let mut whole = serde_json::Map::new();
            whole.insert("schema".into(), self.schema.into());
            if let Value::Object(fields) = self.json {
                whole.extend(fields);
            }
            let text = serde_json::to_string_pretty(&Value::Object(whole)).unwrap_or_default();
            out(&format!("{text}\n"));
        } else {
            // Whatever users wrote into it is shown and does nothing. The doctor's text has colours, and looks itself.
            match self.schema == DOCTOR {
                true => out(&self.text),
                false => out(&lines(&self.text)),
            }
        }
        u8::from(!self.yes)
    }
}

/// An error as JSON.
pub fn error_json(sentence: &str) -> Value {
    json!({ "schema": "gpuos.error/1", "error": sentence })
}

/// Writes to standard output; a reader that went away (`gpuos topo | head`) is no error.
pub fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}
