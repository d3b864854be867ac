{{- /* The image of both programs. */}}
{{- define "kubevirt-operator.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- /* What the pods of both programs have in common; the argument is (list $ <component>). */}}
{{- define "kubevirt-operator.pod" -}}
{{- $values := (index . 0).Values -}}
{{- $affinity := eq (index . 1) "webhook" | ternary $values.webhook.affinity $values.affinity -}}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
affinity:
{{- if $affinity }}
{{- toYaml $affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            app.kubernetes.io/name: kubevirt-operator
            app.kubernetes.io/component: {{ index . 1 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- /* What the containers of both programs have in common. */}}
{{- define "kubevirt-operator.container" -}}
image: {{ include "kubevirt-operator.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- /* The Secret with the webhook's certificate; empty when it keeps a CA of its own. */}}
{{- define "kubevirt-operator.certificate" -}}
{{- if .Values.certManager.enabled -}}
machine-webhook-tls
{{- else -}}
{{ .Values.webhook.certificates.secretName }}
{{- end -}}
{{- end }}

{{- /* A duration such as 1m30s in seconds. */}}
{{- define "kubevirt-operator.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+[a-zµ]+" . -1 -}}
{{- $unit := regexFind "[a-zµ]+" . -}}
{{- $sum = addf $sum (mulf (trimSuffix $unit .) (get $units $unit)) -}}
{{- end -}}
{{- $sum -}}
{{- end }}
