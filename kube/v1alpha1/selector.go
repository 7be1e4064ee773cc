package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// LabelSelector selects by labels, as that of Kubernetes does. Each of its lists has an end: nodes compare
// selectors of policies with each of their pods.
//
// +structType=atomic
type LabelSelector struct {
	// MatchLabels are labels that all have to be there.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]string `json:"matchLabels,omitempty"`

	// MatchExpressions are requirements that all have to be met.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement is what a label has to be.
type LabelSelectorRequirement struct {
	// Key is the label's.
	//
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`

	// Operator says what the values are.
	//
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// Values are those of In and NotIn.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Values []string `json:"values,omitempty"`
}

// Selector reads a selector.
func (s *LabelSelector) Selector() (labels.Selector, error) {
	of := metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, r := range s.MatchExpressions {
		of.MatchExpressions = append(of.MatchExpressions, metav1.LabelSelectorRequirement(r))
	}
	return metav1.LabelSelectorAsSelector(&of)
}
