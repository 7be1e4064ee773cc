// Package v1alpha1 has the resources of the API group tsugiki.dev: GraftEndpoint and GraftPolicy.
//
// It owns their fields and the checks that the API server makes of each one by itself. It decides
// nothing about pods. controller-gen makes deploy/crds and zz_generated.deepcopy.go of it.
//
// +kubebuilder:object:generate=true
// +groupName=tsugiki.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate ../hack/generate.sh

// GroupVersion is the group and version of the resources.
var GroupVersion = schema.GroupVersion{Group: "tsugiki.dev", Version: "v1alpha1"}

// AddToScheme makes the resources known to a client.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &GraftEndpoint{}, &GraftEndpointList{}, &GraftPolicy{}, &GraftPolicyList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// ConditionAccepted is the type of a condition of both resources: whether it can be put in force.
const ConditionAccepted = "Accepted"
