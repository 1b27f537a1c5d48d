//! What a collector of traces gets from a real gpuosd on simulated GPUs: its protobuf is read with the types of
//! OpenTelemetry's own definition.

mod follow;
#[path = "../../../../tests/src/port.rs"]
mod port;
#[path = "../../../../tests/src/program.rs"]
mod program;
#[path = "../daemon/site.rs"]
#[expect(dead_code, reason = "the tests of the daemon use more of it")]
mod site;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use gpuos_core::health::Verb;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use site::Site;

/// A collector on the loopback that keeps what it is sent.
struct Collector {
    address: SocketAddr,
    got: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    fn at(address: &str) -> Collector {
        let listener = TcpListener::bind(address).unwrap();
        let collector = Collector {
            address: listener.local_addr().unwrap(),
            got: Arc::default(),
        };
        let got = Arc::clone(&collector.got);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
                for line in head.to_lowercase().lines() {
                    if let Some(value) = line.strip_prefix("content-length: ") {
                        length = value.parse().unwrap();
                    }
                }
                assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
                got.lock().unwrap().push(request);
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        collector
    }

    fn spans(&self) -> Vec<Span> {
        let got = self.got.lock().unwrap();
        let scopes = got
            .iter()
            .flat_map(|request| &request.resource_spans)
            .flat_map(|one| &one.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    fn resource(&self) -> BTreeMap<String, String> {
        let got = self.got.lock().unwrap();
        texts(
            &got[0].resource_spans[0]
                .resource
                .as_ref()
                .unwrap()
                .attributes,
        )
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text =
        |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(Value::StringValue(text)) => text.clone(),
            other => panic!("{other:?}"),
        };
    attributes
        .iter()
        .map(|one| (one.key.clone(), text(&one.value)))
        .collect()
}

/// A node whose gpuosd tells that collector.
fn site(collector: SocketAddr) -> Site {
    let site = Site::new();
    let text = format!("[metrics]\ntraces = \"http://{collector}\"\n");
    std::fs::write(site.path("gpuos.toml"), text).unwrap();
    site
}

#[test]
fn a_recovery_is_one_trace_from_the_fault_until_the_job_runs_again() {
    let collector = Collector::at("127.0.0.1:0");
    let site = site(collector.address);
    site.job(7, "3");
    let daemon = site.start();
    daemon.ready();
    site.until("the job", || {
        (daemon.status().jobs.len() == 1).then_some(())
    });
    site.fault(Some(3), "xid 48");
    site.until("StartTime", || {
        site.slurm("log")
            .contains("JobId=7 StartTime=now")
            .then_some(())
    });
    let runs = "JobId=7 JobName=train\n   UserId=ann(1000) GroupId=ann(1000)\n   JobState=RUNNING Reason=None\n   \
                Requeue=1 Restarts=1\n   RunTime=00:00:01 TimeLimit=1-00:00:00\n   NodeList=n2\n   NumNodes=1 NumCPUs=1\n";
    site.set_slurm("jobs/7", runs);
    let of = |name: &str| collector.spans().into_iter().find(|span| span.name == name);
    let first = site.until("the first span", || of("recovery"));
    assert_eq!(first.parent_span_id, Vec::<u8>::new());
    let mut before = first.start_time_unix_nano;
    for name in ["publish", "requeue", "release", "start"] {
        let span = of(name).unwrap_or_else(|| panic!("no {name} in {:#?}", collector.spans()));
        assert_eq!(
            (&span.trace_id, &span.parent_span_id),
            (&first.trace_id, &first.span_id),
            "{name}"
        );
        assert!(
            before <= span.start_time_unix_nano,
            "{name} begins before what it follows from"
        );
        assert!(
            span.end_time_unix_nano <= first.end_time_unix_nano,
            "{name}"
        );
        before = span.start_time_unix_nano;
    }
    let about = texts(&first.attributes);
    assert_eq!(about["gpuos.gpu"], "3");
    assert!(about["gpuos.rule"].contains("xid-48"), "{about:?}");
    let start = texts(&of("start").unwrap().attributes);
    assert_eq!(
        (&start["gpuos.job"][..], &start["gpuos.nodes"][..]),
        ("7", "n2")
    );
    assert!(
        first.events.iter().any(|event| event.name == "Xid 48"),
        "{first:?}"
    );
    let resource = collector.resource();
    assert_eq!(
        (&resource["service.name"][..], &resource["gpuos.node"][..]),
        ("gpuosd", "n1")
    );
}

#[test]
fn a_collector_that_is_away_costs_a_line_and_gets_the_spans_later() {
    let away = SocketAddr::from(([127, 0, 0, 1], port::port()));
    let site = site(away);
    let daemon = site.start();
    daemon.ready();
    daemon.admin(Verb::Drain, 2);
    site.until("Extra", || {
        site.slurm("extra").contains("out=2").then_some(())
    });
    let trouble = site.until("the trouble", || daemon.status().daemon.troubles.pop());
    assert!(
        trouble.starts_with(&format!("no traces to http://{away}/v1/traces: ")),
        "{trouble}"
    );
    // All else goes on.
    daemon.admin(Verb::Online, 2);
    site.until("Extra without", || {
        (site.slurm("extra") == "rack=7").then_some(())
    });
    let collector = Collector::at(&away.to_string());
    let has = |name: &str| collector.spans().iter().any(|span| span.name == name);
    site.until("the spans", || {
        (has("drain") && has("online") && has("check")).then_some(())
    });
    site.until("no trouble", || {
        daemon.status().daemon.troubles.is_empty().then_some(())
    });
}
