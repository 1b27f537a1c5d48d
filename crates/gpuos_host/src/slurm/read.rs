//! Jobs, as squeue's fields and the heads of scontrol's records have them together.

use std::collections::BTreeMap;

use super::Job;
use super::rows::{Kind, Row};
use super::strict::{head, starts};
use super::text::Record;

/// Jobs whose records are asked for one by one at most, when a list leaves it open which of its lines are whose.
pub(super) const SINGLY: usize = 64;

/// What `scontrol show job` is asked for, to show this job and no other, if it can.
pub(super) fn name(row: &Row) -> String {
    match &row.kind {
        // The number of an array, which is that of one of its tasks as well, means all of them.
        Kind::Array(..) if row.is_single() => row.label.clone(),
        _ => row.id.to_string(),
    }
}

/// The job of a row in what scontrol printed when it was asked for it alone; `rows` has all that squeue printed with it.
pub(super) fn single(text: &str, row: &Row, rows: &[Row]) -> Job {
    let record = match &row.kind {
        Kind::Plain => head(text, row),
        Kind::Array(..) if row.is_single() => head(text, row),
        // Components of a heterogeneous job come together, and so do the tasks of an array.
        _ => {
            let mut all = split(text, rows);
            let missing = || Err("scontrol does not show it, or not it alone".into());
            all.remove(&row.id).unwrap_or_else(missing)
        }
    };
    job(record, row, text)
}

/// The jobs of these rows in a list that scontrol printed, in its order. Those of which it is not sure where their
/// records begin and end are asked for by `ask`.
pub(super) fn list(
    text: &str,
    rows: &[Row],
    mut ask: impl FnMut(&Row) -> Option<String>,
) -> Vec<Job> {
    let mut records = split(text, rows);
    let places = starts(text);
    let place = |id: u32| places.iter().position(|(_, of)| *of == Some(id));
    let mut rows_in_order: Vec<&Row> = rows.iter().collect();
    rows_in_order.sort_by_key(|row| (place(row.id).unwrap_or(usize::MAX), row.id));
    let mut asked = 0;
    let mut jobs = Vec::new();
    for row in rows_in_order {
        match records.remove(&row.id) {
            Some(Ok(record)) => jobs.push(job(Ok(record), row, text)),
            _ if asked < SINGLY => {
                asked += 1;
                // One that is not there any more has ended meanwhile.
                jobs.extend(ask(row).map(|text| single(&text, row, rows)));
            }
            _ => {
                let why = "too many records of this list cannot be told apart".to_string();
                jobs.push(job(Err(why), row, text));
            }
        }
    }
    jobs
}

/// The records in a text, by the numbers of their jobs. A record counts when it is its job's only one and what comes
/// behind it is a record that counts, or the end: else what looks like another one may be a part of it.
fn split(text: &str, rows: &[Row]) -> BTreeMap<u32, Result<Record, String>> {
    let by_number: BTreeMap<u32, &Row> = rows.iter().map(|row| (row.id, row)).collect();
    let places = starts(text);
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for id in places.iter().filter_map(|(_, id)| *id) {
        *counts.entry(id).or_default() += 1;
    }
    let read = |n: usize| {
        let (start, id) = places[n];
        let end = places.get(n + 1).map_or(text.len(), |(next, _)| *next);
        let id = id.filter(|id| counts[id] == 1)?;
        let row = by_number.get(&id)?;
        Some((id, head(&text[start..end], row)))
    };
    let mut found = BTreeMap::new();
    let mut behind = true;
    for n in (0..places.len()).rev() {
        let one = read(n);
        let sound = matches!(one, Some((_, Ok(_))));
        if let Some((id, record)) = one {
            let unsure = || Err("its record is followed by something else".to_string());
            found.insert(id, if behind { record } else { unsure() });
        }
        behind = sound;
    }
    found
}

fn job(record: Result<Record, String>, row: &Row, text: &str) -> Job {
    match record {
        Ok(record) => {
            let mut job = Job::from_record(&record);
            job.name.clone_from(&row.name);
            (job.uid, job.user) = (row.uid, row.user.clone());
            job.label.clone_from(&row.label);
            job.submit_line = submit_line(text, row);
            job
        }
        Err(why) => Job::unreadable(row, &why),
    }
}

/// The command line that submitted a job, which is its user's word: the one line of its record that has it.
fn submit_line(text: &str, row: &Row) -> String {
    let own = format!("JobId={} ", row.id);
    let mut lines = text
        .lines()
        .skip_while(|line| !line.starts_with(&own))
        .skip(1);
    let lines = lines
        .by_ref()
        .take_while(|line| !line.starts_with("JobId="));
    let mut found = lines.filter_map(|line| line.strip_prefix("   SubmitLine="));
    match (found.next(), found.next()) {
        (Some("(null)"), _) | (None, _) | (_, Some(_)) => String::new(),
        (Some(line), None) => line.trim().into(),
    }
}
