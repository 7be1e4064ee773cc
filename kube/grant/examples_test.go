package grant

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// example is what a file of deploy/examples has.
type example struct {
	namespaces  map[string]map[string]string // labels by name
	endpoints   map[string]*v1alpha1.GraftEndpoint
	policies    []*v1alpha1.GraftPolicy
	services    map[string]*corev1.Service
	deployments []*appsv1.Deployment
}

func readExample(t *testing.T, file string) *example {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e := &example{namespaces: map[string]map[string]string{}, endpoints: map[string]*v1alpha1.GraftEndpoint{}, services: map[string]*corev1.Service{}}
	for r := yaml.NewYAMLReader(bufio.NewReader(f)); ; {
		text, err := r.Read()
		if errors.Is(err, io.EOF) {
			return e
		}
		if err != nil {
			t.Fatal(err)
		}
		document := string(text)
		var is metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &is); err != nil {
			t.Fatal(err)
		}
		switch is.Kind {
		case "Namespace":
			ns := parse[corev1.Namespace](t, document)
			e.namespaces[ns.Name] = ns.Labels
		case "GraftEndpoint":
			p := parse[v1alpha1.GraftEndpoint](t, document)
			e.endpoints[p.Name] = p
		case "GraftPolicy":
			p := parse[v1alpha1.GraftPolicy](t, document)
			p.UID = types.UID(p.Namespace + "/" + p.Name)
			e.policies = append(e.policies, p)
		case "Service":
			s := parse[corev1.Service](t, document)
			e.services[s.Name] = s
		case "Deployment":
			e.deployments = append(e.deployments, parse[appsv1.Deployment](t, document))
		default:
			t.Errorf("%s has a %q, of which this test knows nothing", file, is.Kind)
		}
	}
}

// Each pod of deploy/examples is given rules by the resources beside it, each policy selects one, and Services
// of policies are there.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../deploy/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no file is in deploy/examples: %v", err)
	}
	for _, file := range files {
		e := readExample(t, file)
		if len(e.deployments) == 0 {
			t.Errorf("%s has no pods", file)
		}
		ruled := map[string]bool{} // policies that select a pod
		for _, d := range e.deployments {
			pod := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
			pod.Name, pod.Namespace, pod.UID = d.Name, d.Namespace, "u"
			labels, known := e.namespaces[d.Namespace]
			if !known {
				t.Errorf("%s: Deployment %s is in namespace %q, which is not there", file, d.Name, d.Namespace)
			}
			if class := pod.Spec.RuntimeClassName; class == nil || *class != "tsugiki" {
				t.Errorf("%s: the pods of Deployment %s are not grafted", file, d.Name)
			}
			q := question(t, "{}")
			q.Pod, q.Namespace = pod, labels
			q.Endpoint = func(name string) *v1alpha1.GraftEndpoint { return e.endpoints[name] }
			q.Peers = func() *Peers { return NewPeers(nil) }
			for _, p := range e.policies {
				if p.Namespace != d.Namespace {
					continue
				}
				if is, err := matches(&p.Spec.PodSelector, pod.Labels); err != nil || is {
					ruled[p.Name] = true
				}
				q.Policies = append(q.Policies, p)
			}
			got := Decide(q)
			if got.Grant.Refused != "" || len(got.Grant.Containers) == 0 {
				t.Errorf("%s: a pod of Deployment %s gets %+v", file, d.Name, got.Grant)
			}
			e.checkServices(t, file, got.Served)
		}
		for _, p := range e.policies {
			if !ruled[p.Name] {
				t.Errorf("%s: GraftPolicy %s selects no pod", file, p.Name)
			}
		}
	}
}

func (e *example) checkServices(t *testing.T, file string, served []Served) {
	t.Helper()
	for _, s := range served {
		for _, to := range s.Services {
			of := e.services[to.Name]
			if of == nil || len(of.Spec.Selector) > 0 || !slices.ContainsFunc(of.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == to.Port }) {
				t.Errorf("%s: no Service without a selector has the port %+v", file, to)
			}
		}
	}
}
