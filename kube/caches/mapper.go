package caches

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"

	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Mapper is the MapperProvider of a manager. It returns a mapper that knows the resources of the
// controllers and asks nobody. One that asks the API server would end a process that starts while the
// API server is away, and would make a thousand nodes that start at once ask for it first.
func Mapper(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	m.Add(v1alpha1.GroupVersion.WithKind("GraftEndpoint"), meta.RESTScopeRoot)
	m.Add(v1alpha1.GroupVersion.WithKind("GraftPolicy"), meta.RESTScopeNamespace)
	return m, nil
}
