//! The finalizer of a Machine.

use controller_core::writes::add_finalizer;

use super::*;

#[tokio::test]
async fn the_finalizers_of_others_stay_also_on_a_machine_with_more_than_are_cached() {
    const READ: &str = "GET /apis/vitistack.io/v1alpha1/namespaces/default/machines";
    const WRITE: &str = "PATCH /apis/vitistack.io/v1alpha1/namespaces/default/machines/web";
    for (count, expected) in [(16, vec![WRITE]), (20, vec![READ, WRITE])] {
        let theirs: Vec<_> = (0..count).map(|it| format!("example.org/{it}")).collect();
        let live = theirs.clone();
        let api = Api::new(move |call, query| {
            let metadata = json!({"name": "web", "namespace": "default", "finalizers": live});
            let object = json!({"metadata": metadata});
            if call == READ {
                assert!(query.contains("metadata.name%3Dweb"), "{query}");
                return list(&[object]);
            }
            (200, object)
        });
        let mut machine = machine(block());
        machine.metadata.finalizers = Some(theirs.iter().take(17).cloned().collect());
        let guarded = GuardedClient::new(api.client.clone(), LeaseGuard::Always);
        add_finalizer(&guarded, &machine).await.unwrap();
        assert_eq!(api.calls(), expected);
        let calls = api.calls.lock().unwrap();
        let written = &calls.last().unwrap().1["metadata"];
        let mut all = theirs;
        all.push(names::FINALIZER.to_owned());
        assert_eq!(written["finalizers"], json!(all));
        assert_eq!(written["uid"], machine.uid());
    }
}
