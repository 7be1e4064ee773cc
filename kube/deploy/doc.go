// Package deploy tests the files of the folder deploy: that the chart makes of its default values
// what the plain manifests have, and that the dashboard shows metrics that there are.
//
// It has no code but tests. That of the FlowSchemas needs root and kube-apiserver, the others no privilege.
package deploy
