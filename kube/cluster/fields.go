package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Fields that the cluster lacks. The API server drops a field that the stored CustomResourceDefinition does
// not have, from what clients write and from what it answers. An older definition, as helm leaves it, so
// makes an ingress rule without its from: everybody is let in. Nobody sees that in the policy. So the process
// of the cluster compares what the API server publishes with the fields of its own version, and is not ready
// while one is missing. Then a rollout stops, and the former process goes on.

// Fields is a check of readiness. Once the cluster had all fields, it asks no more.
type Fields struct {
	server rest.Interface
	log    *slog.Logger

	mu   sync.Mutex // guards what follows
	done bool
	said string
}

// NewFields makes a check with a manager's client.
func NewFields(m ctrl.Manager, log *slog.Logger) (*Fields, error) {
	d, err := discovery.NewDiscoveryClientForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	return &Fields{server: d.RESTClient(), log: log}, nil
}

// Check implements healthz.Checker. What it returns is logged, as no answer to a probe has it.
func (f *Fields) Check(r *http.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		return nil
	}
	err := f.ask(r.Context())
	if apierrors.IsForbidden(err) {
		f.log.Warn("the fields of the cluster's resources cannot be compared: the API server does not show them to all service accounts", "err", err)
		err = nil
	}
	f.done = err == nil
	if err != nil && err.Error() != f.said {
		f.said = err.Error()
		f.log.Error("not ready", "err", err)
	}
	return err
}

// ask compares the specifications of both resources.
func (f *Fields) ask(ctx context.Context) error {
	text, err := f.server.Get().AbsPath("/openapi/v3/apis/" + v1alpha1.GroupVersion.String()).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return errors.New("the cluster has no GraftEndpoints and GraftPolicies: kubectl apply --server-side --force-conflicts -f deploy/crds")
	}
	if err != nil {
		return fmt.Errorf("ask for the fields of resources: %w", err)
	}
	var published struct {
		Components struct{ Schemas map[string]*fields }
	}
	if err := json.Unmarshal(text, &published); err != nil {
		return fmt.Errorf("read the fields of resources: %w", err)
	}
	var missing []string
	for _, t := range []reflect.Type{reflect.TypeFor[v1alpha1.GraftEndpoint](), reflect.TypeFor[v1alpha1.GraftPolicy]()} {
		spec, _ := t.FieldByName("Spec")
		var has *fields
		for full, s := range published.Components.Schemas {
			if strings.HasSuffix(full, "."+t.Name()) {
				has = s.Properties["spec"]
			}
		}
		missing = append(missing, has.lack(spec.Type, t.Name()+".spec")...)
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the cluster's CustomResourceDefinitions are of another version, and the API server drops these fields: %s; "+
		"kubectl apply --server-side --force-conflicts -f deploy/crds", strings.Join(missing, ", "))
}

// fields is a part of a schema.
type fields struct {
	Properties map[string]*fields
	Items      *fields
}

// lack returns the paths of what a type of v1alpha1 has and the schema has not.
func (s *fields) lack(t reflect.Type, path string) (missing []string) {
	if s == nil {
		return []string{path}
	}
	switch {
	case t.Kind() == reflect.Pointer:
		return s.lack(t.Elem(), path)
	case t.Kind() == reflect.Slice:
		return s.Items.lack(t.Elem(), path+"[]")
	case t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[v1alpha1.GraftPolicy]().PkgPath():
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		missing = append(missing, s.Properties[name].lack(f.Type, path+"."+name)...)
	}
	return missing
}
