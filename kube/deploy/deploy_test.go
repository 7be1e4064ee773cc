package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tsugiki/tsugiki/kube/kubetest"
)

// byName lists objects by kind and name.
func byName(t *testing.T, list []*unstructured.Unstructured) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, o := range list {
		key := o.GetKind() + " " + o.GetName()
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = o.Object
	}
	return all
}

func read(t *testing.T, pattern string) (texts []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(kubetest.Root(t), "deploy", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no file is deploy/%s: %v", pattern, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

func TestChartMakesTheManifests(t *testing.T) {
	var list []*unstructured.Unstructured
	for _, text := range append(read(t, "manifests/*.yaml"), read(t, "crds/*.yaml")...) {
		list = append(list, kubetest.Parse(t, []byte(text))...)
	}
	want := byName(t, list)
	delete(want, "Namespace tsugiki") // helm makes it
	if diff := cmp.Diff(want, byName(t, kubetest.Chart(t, "tsugiki", ""))); diff != "" {
		t.Errorf("manifests and chart differ (-manifests +chart):\n%s", diff)
	}
}

// chart is the text of what helm makes.
func chart(t *testing.T, namespace, values string) string {
	t.Helper()
	text, err := json.Marshal(byName(t, kubetest.Chart(t, namespace, values)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// common are other values than the default ones.
const common = `runtimeClass: graft, translateClass: graft46, image: "example.org/kube:1", runDir: /run/other`

func TestChartOfOtherValues(t *testing.T) {
	for name, tt := range map[string]struct {
		values    string
		has, lack []string
	}{
		"all": {
			`{` + common + `, node: {nodeSelector: {a: b}, tolerations: [{key: x}]}, agent: {config: "x = 1"}, containerd: {config: /etc/k3s/a.toml, runDir: /run/k3s, unit: ""}}`,
			[]string{
				`"handler":"tsugiki"`, `"--runtime-class=graft"`, `"--runtime-class=graft46"`, `"--namespace=net"`, `"nodeSelector":{"a":"b"}`, `"tolerations":[{"key":"x"}]`,
				`"image":"example.org/kube:1"`, `"path":"/run/other"`, `system:serviceaccount:net:tsugiki-kube-node`, `"agent.toml":"x = 1\n"`,
				`"--containerd-config=/etc/k3s/a.toml"`, `"path":"/etc/k3s"`, `"mountPath":"/host/etc/k3s"`, `"path":"/run/k3s"`, `"--containerd-unit="`,
				`"--containerd=/run/k3s/containerd.sock"`,
			},
			[]string{`"namespace":"tsugiki"`, `tsugiki-kube:0.1`, `/etc/containerd`, `--translate`, `/cni`, `graft46"}`, `"operator":"Exists"`, `--metrics`, `"ports":[{`},
		},
		"translation": {
			`{` + common + `, translate: {enabled: true, pluginDir: /usr/lib/cni/}}`,
			[]string{
				`"--translate"`, `"--plugin-dir=/usr/lib/cni/"`, `"mountPath":"/host/usr/lib/cni"`, `"path":"/usr/lib/cni/"`,
				`"path":"/etc/cni/tsugiki-translate.d"`, `"handler":"tsugiki-translate"`, `"name":"graft46"`,
			},
			[]string{`/opt/cni`, `"--containerd=`, `"handler":"graft46"`},
		},
		"containerd is configured elsewhere": {`{containerd: {config: ""}}`, []string{`"--containerd-config="`}, []string{`/etc/containerd`, `containerd-config"`}},
		"the plugin of NRI": {
			`{nri: {enabled: true, dir: /run/other/nri}}`,
			[]string{
				`"command":["/tsugiki-nri"]`, `{"hostPath":{"path":"/run/other/nri","type":"DirectoryOrCreate"},"name":"nri"}`,
				`{"mountPath":"/var/run/nri","name":"nri","readOnly":true}`, `{"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount","name":"no-token","readOnly":true}`,
			},
			nil,
		},
		"the package": {
			`{` + common + `, agent: {install: false}}`,
			[]string{`"handler":"graft"`, `"handler":"graft46"`, `"path":"/run/other","type":"Directory"`},
			[]string{`"privileged"`, `hostPID`, `initContainers`, `/opt/tsugiki`, `/etc/containerd`, `ConfigMap`, `nri`, `checksum`},
		},
		"metrics": {
			`{metrics: {agent: "[::]:9469", node: "198.51.100.1:9471", cluster: "0.0.0.0:9472"}}`,
			[]string{
				`shared = [\"containerd\"]\n[metrics]\nlisten = \"[::]:9469\"\n"`, `"--metrics=198.51.100.1:9471"`, `"--metrics=0.0.0.0:9472"`,
				`"ports":[{"containerPort":9469,"name":"metrics"}]`, `"ports":[{"containerPort":9471,"name":"metrics"}]`, `"ports":[{"containerPort":9472,"name":"metrics"}]`,
			},
			nil,
		},
		"the cluster's process": {
			`{node: {tolerations: []}, cluster: {replicas: 3, nodeSelector: {a: b}, tolerations: [{key: x}]}}`,
			[]string{`"replicas":3`, `"nodeSelector":{"a":"b"}`, `"tolerations":[{"key":"x"}]`},
			[]string{`"operator":"Exists"`},
		},
	} {
		text := chart(t, "net", tt.values)
		for _, want := range tt.has {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no object has %s", name, want)
			}
		}
		for _, not := range tt.lack {
			if strings.Contains(text, not) {
				t.Errorf("%s: an object has %s", name, not)
			}
		}
	}
}

// pods are the specifications of pods in objects, by kind and name.
func pods(t *testing.T, list []*unstructured.Unstructured) map[string]corev1.PodTemplateSpec {
	t.Helper()
	found := map[string]corev1.PodTemplateSpec{}
	for _, o := range list {
		raw, is, err := unstructured.NestedMap(o.Object, "spec", "template")
		if err != nil || !is {
			continue
		}
		var pod corev1.PodTemplateSpec
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(raw, &pod, true); err != nil {
			t.Fatal(err)
		}
		found[o.GetKind()+" "+o.GetName()] = pod
	}
	return found
}

// Each pod of the chart has the image, and may fetch it.
func TestImage(t *testing.T) {
	const values = `image: "example.org/kube:1", imagePullPolicy: Always, imagePullSecrets: [{name: a}, {name: b}], nri: {enabled: true}`
	seen := 0
	for _, uninstall := range []string{"false", "true"} {
		for name, pod := range pods(t, kubetest.Chart(t, "net", "{"+values+", uninstall: "+uninstall+"}")) {
			if diff := cmp.Diff([]corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}, pod.Spec.ImagePullSecrets); diff != "" {
				t.Errorf("%s: secrets (-want +got):\n%s", name, diff)
			}
			for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				seen++
				if c.Image != "example.org/kube:1" || c.ImagePullPolicy != corev1.PullAlways {
					t.Errorf("%s: container %s has the image %s, %s", name, c.Name, c.Image, c.ImagePullPolicy)
				}
				if c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() && c.Name != "agent" {
					t.Errorf("%s: container %s has resources %+v", name, c.Name, c.Resources)
				}
			}
		}
	}
	if want := 7; seen != want {
		t.Errorf("%d containers, want %d", seen, want)
	}
}

// Another configuration of the agent is another pod, which reads it.
func TestConfigurationIsInThePod(t *testing.T) {
	all := map[string]string{}
	for _, values := range []string{`{}`, `{agent: {config: "x = 1"}}`, `{metrics: {agent: "[::]:9469"}}`} {
		sum := pods(t, kubetest.Chart(t, "net", values))["DaemonSet tsugiki-kube-node"].Annotations["checksum/config"]
		if other, is := all[sum]; is || sum == "" {
			t.Errorf("values %s and %s have the digest %q", values, other, sum)
		}
		all[sum] = values
	}
}
