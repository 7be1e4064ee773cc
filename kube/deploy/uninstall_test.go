package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// deploy/uninstall.yaml is what the chart makes to uninstall, of the default values.
func TestUninstall(t *testing.T) {
	want := byName(t, kubetest.Parse(t, []byte(read(t, "uninstall.yaml")[0])))
	got := byName(t, kubetest.Chart(t, "tsugiki", "{uninstall: true}"))
	for key := range got {
		switch kind, _, _ := strings.Cut(key, " "); kind {
		case "DaemonSet", "Deployment", "PodDisruptionBudget", "ConfigMap":
		default:
			delete(got, key)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deploy/uninstall.yaml and what the chart makes differ (-file +chart):\n%s", diff)
	}
	text := chart(t, "net", `{uninstall: true, node: {nodeSelector: {a: b}, tolerations: [{key: x}]}}`)
	for _, want := range []string{`"namespace":"net"`, `"nodeSelector":{"a":"b"}`, `"tolerations":[{"key":"x"}]`, `"args":["uninstall"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("no object has %s", want)
		}
	}
}

// What is no namespace's is left behind, unless something deletes it: helm uninstall what the chart's templates have,
// and kubectl delete what is in files.
func TestNothingIsLeft(t *testing.T) {
	deleted := map[string]any{}
	for _, text := range append(read(t, "manifests/*.yaml"), read(t, "crds/*.yaml")...) {
		for key, o := range byName(t, kubetest.Parse(t, []byte(text))) {
			deleted[key] = o
		}
	}
	found := 0
	for _, o := range kubetest.Chart(t, "tsugiki", "{nri: {enabled: true}}") {
		if o.GetNamespace() != "" {
			continue
		}
		found++
		if key := o.GetKind() + " " + o.GetName(); deleted[key] == nil {
			t.Errorf("kubectl delete -f deploy/manifests -f deploy/crds leaves %s", key)
		}
	}
	if found == 0 {
		t.Error("the chart has no object of the cluster")
	}
	files, err := kubetest.Render(t, "net", "{uninstall: true}")
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range files {
		if strings.Contains(o, "helm.sh/hook") || strings.Contains(o, "helm.sh/resource-policy") {
			t.Errorf("helm uninstall leaves an object of %s", name)
		}
	}
	for what, tt := range map[string]struct {
		text string
		want []string
	}{
		"NOTES.txt": {files["NOTES.txt"], []string{"kubectl rollout status -n net daemonset/tsugiki-uninstall", "helm uninstall -n net tsugiki", "kubectl delete -f deploy/crds"}},
		"uninstall.yaml": {read(t, "uninstall.yaml")[0], []string{
			"kubectl rollout status -n tsugiki daemonset/tsugiki-uninstall", "kubectl delete -f deploy/manifests --ignore-not-found", "kubectl delete -f deploy/crds",
		}},
	} {
		var at []int
		for _, command := range tt.want {
			at = append(at, strings.Index(tt.text, command))
		}
		if !slices.IsSorted(at) || at[0] < 0 {
			t.Errorf("%s does not have the commands %q in this order:\n%s", what, tt.want, tt.text)
		}
	}
}

// Before a user looks for pods, NOTES.txt says what the namespace needs; and how the release is upgraded.
func TestNotes(t *testing.T) {
	files, err := kubetest.Render(t, "net", `{runtimeClass: graft}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"kubectl label namespace net pod-security.kubernetes.io/enforce=privileged", "rollout status -n net daemonset/tsugiki-kube-node", "runtimeClassName: graft",
		"kubectl apply --server-side --force-conflicts -f deploy/crds", "helm upgrade -n net tsugiki deploy/helm/tsugiki --reset-then-reuse-values", "--set uninstall=true",
	} {
		if !strings.Contains(files["NOTES.txt"], want) {
			t.Errorf("NOTES.txt does not say %q:\n%s", want, files["NOTES.txt"])
		}
	}
}
