//! The expressions of the ValidatingAdmissionPolicies name fields that the installed kinds have.

use lab::{
    Lab,
    objects::{ADMISSION_POLICY, is_reported},
};
use serde_json::{Value, json};

/// A field that no kind has.
const UNKNOWN_FIELD: &str = "oldObject.metadata.unknown == ''";

/// The policy with the versions that are served here, because kube-controller-manager checks no expression for every
/// version, and with a last validation that fails the check: its warning shows for which kinds the check was made.
fn to_check(policy: &Value) -> Value {
    let mut spec = policy["spec"].clone();
    for rule in spec["matchConstraints"]["resourceRules"]
        .as_array_mut()
        .unwrap()
    {
        let version = match rule["apiGroups"][0].as_str().unwrap() {
            "vitistack.io" => "v1alpha1",
            "cdi.kubevirt.io" => "v1beta1",
            _ => "v1",
        };
        rule["apiVersions"] = json!([version]);
    }
    let validations = spec["validations"].as_array_mut().unwrap();
    validations.push(json!({"expression": UNKNOWN_FIELD}));
    let name = format!("{}-to-check", policy["metadata"]["name"].as_str().unwrap());
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// The kinds that a policy is about, by the plurals of its rules.
fn resources_of(policy: &Value) -> usize {
    let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array();
    let resources = rules
        .unwrap()
        .iter()
        .map(|rule| rule["resources"].as_array().unwrap().len());
    resources.sum()
}

/// Waits until kube-controller-manager has checked the expressions of a policy.
async fn expression_warnings(lab: &Lab, policy: &Value) -> Vec<Value> {
    let policies = lab.objects(ADMISSION_POLICY, "");
    let name = policy["metadata"]["name"].as_str().unwrap();
    let is_checked = |it: &Value| is_reported(it) && it["status"]["typeChecking"].is_object();
    let checked = policies.until(name, "to be checked", is_checked).await;
    let warnings = &checked.unwrap()["status"]["typeChecking"]["expressionWarnings"];
    warnings.as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn the_policies_are_valid_for_the_installed_kinds() {
    let lab = Lab::start().await.unwrap();
    let policies = lab.objects(ADMISSION_POLICY, "").list().await.unwrap();
    assert!(policies.len() >= 4, "{policies:?}");
    for policy in &policies {
        assert_eq!(expression_warnings(&lab, policy).await, Vec::<Value>::new());
        let copy = to_check(policy);
        lab.apply(&copy).await.unwrap();
        let last = copy["spec"]["validations"].as_array().unwrap().len() - 1;
        let warnings = expression_warnings(&lab, &copy).await;
        let [unknown] = &warnings[..] else {
            panic!("{warnings:#?}");
        };
        let field = format!("spec.validations[{last}].expression");
        assert_eq!(unknown["fieldRef"], field, "{unknown}");
        let text = unknown["warning"].as_str().unwrap();
        assert_eq!(
            text.matches("Kind=").count(),
            resources_of(policy),
            "{text}"
        );
    }
}
