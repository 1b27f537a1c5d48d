//! What Prometheus has of all nodes: heat, power, load and faults by node and GPU, in three questions however many nodes
//! there are.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::board::number;

/// How long Prometheus may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer: four figures of 100,000 GPUs.
const MOST: u64 = 128 << 20;
const MEASURED: &str = "max by (__name__, node, gpu) ({__name__=~\"gpuos_gpu_(temperature_celsius|power_watts|\
     utilization_ratio|memory_used_bytes)\"})";
const FAULTS: &str = "max by (node, gpu, rule) (gpuos_gpu_fault) == 1";
const POLLED: &str = "max by (node, gpu) (gpuos_gpu_polled)";

/// A GPU as gpuosd of its node told it last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Whether it answers.
    pub polled: bool,
    /// Degrees Celsius.
    pub celsius: Option<u32>,
    /// Milliwatts.
    pub power_mw: Option<u32>,
    /// Percent of time with work.
    pub busy: Option<u32>,
    /// MiB in use.
    pub memory_mib: Option<u64>,
    /// Rules that speak against it.
    pub rules: Vec<String>,
}

/// By node and number of the GPU.
pub type FiguresByNode = BTreeMap<String, BTreeMap<usize, Figures>>;

/// Asks the Prometheus at `url`.
///
/// # Errors
/// Why there is no answer, with what to look at.
pub fn ask(url: &str) -> Result<FiguresByNode, String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        // A server of the site's own.
        .proxy(None);
    let agent: ureq::Agent = config.build().into();
    let mut told = FiguresByNode::new();
    for query in [POLLED, MEASURED, FAULTS] {
        for series in query_one(&agent, url, query)? {
            take(&mut told, &series);
        }
    }
    Ok(told)
}

fn query_one(agent: &ureq::Agent, url: &str, query: &str) -> Result<Vec<Value>, String> {
    let path = format!("{url}/api/v1/query");
    let wrong = |why: String| {
        format!(
            "Prometheus at {url}: {why}; look at --prometheus, or [metrics] prometheus in gpuos.toml"
        )
    };
    let mut answer = agent
        .post(&path)
        .send_form([("query", query)])
        .map_err(|e| wrong(e.to_string()))?;
    let status = answer.status();
    let text = answer.body_mut().with_config().limit(MOST).read_to_vec();
    let text = text.map_err(|e| wrong(e.to_string()))?;
    let Ok(mut json) = serde_json::from_slice::<Value>(&text) else {
        return Err(wrong(format!("it answers {status} and no JSON")));
    };
    if json["status"] != "success" {
        let why = json["error"].as_str().unwrap_or("it gives no reason");
        return Err(wrong(why.into()));
    }
    match json["data"]["result"].take() {
        Value::Array(series) => Ok(series),
        _ => Err(wrong("its answer has no series".into())),
    }
}

/// Takes one series; what is not as gpuosd writes it is passed over.
fn take(told: &mut FiguresByNode, series: &Value) {
    let label = |name: &str| series["metric"][name].as_str().unwrap_or_default();
    let value = series["value"][1]
        .as_str()
        .and_then(|text| text.parse::<f64>().ok());
    let value = value.filter(|value| value.is_finite() && *value >= 0.0);
    let (Some(gpu), Some(value)) = (label("gpu").parse().map(number).ok(), value) else {
        return;
    };
    let node = told.entry(label("node").into()).or_default();
    let figures: &mut Figures = node.entry(gpu).or_default();
    match label("__name__") {
        "gpuos_gpu_temperature_celsius" => figures.celsius = Some(value.round() as u32),
        "gpuos_gpu_power_watts" => figures.power_mw = Some((value * 1000.0).round() as u32),
        "gpuos_gpu_utilization_ratio" => figures.busy = Some((value * 100.0).round() as u32),
        "gpuos_gpu_memory_used_bytes" => figures.memory_mib = Some(value as u64 >> 20),
        _ => match label("rule") {
            "" => figures.polled = value > 0.0,
            rule => figures.rules.push(rule.into()),
        },
    }
}
